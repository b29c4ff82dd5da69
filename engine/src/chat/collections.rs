//! Python's methods of lists, tuples, and dictionaries, and functions on their items.

use super::args::{bind, flag, integer, invalid, required, split};
use super::compare::{equal, order};
use super::meter::spend;
use super::values::{Dict, Entries, Kind, List, check_store, dict, hashable, items, kind, list, pairs, tuple};
use minijinja::{Error, State, Value};
use std::cmp::Ordering;

/// Charge for each item that is moved inside a container.
const MOVE: u64 = 24;

/// Result of a method, or `None` if it does not exist.
pub(super) type Found = Result<Option<Value>, Error>;

/// Calls a method of a dictionary. For calls, methods take precedence over items, as in Python.
pub(super) fn dict_method(state: &mut State, map: &Value, method: &str, args: &[Value]) -> Found {
    let value = match method {
        "get" => {
            let [key, default] = bind(args, ["", ""])?;
            let key = required(key)?;
            hashable(&key)?;
            let found = map.get_item(&key)?;
            if found.is_undefined() {
                default.unwrap_or_else(|| Value::from(()))
            } else {
                found
            }
        }
        "keys" => {
            let [] = bind(args, [])?;
            list(items(state, map)?)
        }
        "values" => {
            let [] = bind(args, [])?;
            list(pairs(state, map)?.into_iter().map(|(_, value)| value).collect())
        }
        "items" => {
            let [] = bind(args, [])?;
            dict_items(state, map)?
        }
        "copy" => {
            let [] = bind(args, [])?;
            dict(pairs(state, map)?)
        }
        _ => match map.downcast_object_ref::<Dict>() {
            Some(changed) => return dict_change(state, map, changed, method, args),
            None => return Ok(None),
        },
    };
    Ok(Some(value))
}

/// Returns the entries of a dictionary as tuples.
pub(super) fn dict_items(state: &mut State, map: &Value) -> Result<Value, Error> {
    let entries = pairs(state, map)?.into_iter();
    Ok(list(entries.map(|(key, value)| tuple(vec![key, value])).collect()))
}

fn dict_change(state: &mut State, map: &Value, changed: &Dict, method: &str, args: &[Value]) -> Found {
    let none = || Value::from(());
    let value = match method {
        "pop" => {
            let [key, default] = bind(args, ["", ""])?;
            let key = required(key)?;
            hashable(&key)?;
            spend(state, changed.entries().len() as u64 * MOVE)?;
            let removed = changed.entries().shift_remove(&key);
            removed.or(default).ok_or_else(|| invalid("the key does not exist"))?
        }
        "popitem" => {
            let [] = bind(args, [])?;
            let last = changed.entries().pop();
            let (key, value) = last.ok_or_else(|| invalid("the dictionary is empty"))?;
            tuple(vec![key, value])
        }
        "setdefault" => {
            let [key, default] = bind(args, ["", ""])?;
            let (key, default) = (required(key)?, default.unwrap_or_else(none));
            hashable(&key)?;
            check_store(state, map, &default)?;
            changed.entries().entry(key).or_insert(default).clone()
        }
        "update" => {
            for (key, value) in entries_of(state, args)? {
                check_store(state, map, &value)?;
                changed.entries().insert(key, value);
            }
            none()
        }
        "clear" => {
            let [] = bind(args, [])?;
            let removed: Entries = std::mem::take(&mut *changed.entries());
            drop(dict(removed));
            none()
        }
        _ => return Ok(None),
    };
    Ok(Some(value))
}

/// Returns the entries for `dict(…)` and `dict.update(…)`: the entries of a mapping or of pairs, and named entries.
pub(super) fn entries_of(state: &mut State, args: &[Value]) -> Result<Vec<(Value, Value)>, Error> {
    let (positional, named) = split(args);
    let mut entries = match positional {
        [] => Vec::new(),
        [map] if kind(map) == Kind::Dict => pairs(state, map)?,
        [list] => {
            let pair = |item: Value| match &items(state, &item)?[..] {
                [key, value] => {
                    hashable(key)?;
                    Ok((key.clone(), value.clone()))
                }
                _ => Err(invalid("expected pairs of key and value")),
            };
            items_of(list)?.map(pair).collect::<Result<_, _>>()?
        }
        _ => return Err(invalid("expected at most one positional argument")),
    };
    if let Some(named) = named {
        entries.extend(pairs(state, named)?);
    }
    Ok(entries)
}

fn items_of(value: &Value) -> Result<impl Iterator<Item = Value>, Error> {
    super::values::iterable(value)?;
    value.try_iter()
}

/// Calls a method of a list, tuple, or range.
pub(super) fn list_method(state: &mut State, value: &Value, method: &str, args: &[Value]) -> Found {
    let found = match method {
        "count" | "index" => {
            let [wanted, start, stop] = bind(args, ["", "", ""])?;
            let (wanted, start, stop) = (required(wanted)?, integer(start)?, integer(stop)?);
            let all = items(state, value)?;
            let bound = |at: i64| {
                (if at < 0 {
                    at.saturating_add(all.len() as i64)
                } else {
                    at
                })
                .max(0) as usize
            };
            let (start, stop) = (start.map_or(0, bound), stop.map_or(all.len(), bound));
            let mut n = 0;
            for (i, item) in all.iter().enumerate().take(stop).skip(start) {
                if equal(state, item, &wanted)? {
                    n += 1;
                    if method == "index" {
                        return Ok(Some(Value::from(i)));
                    }
                }
            }
            if method == "index" {
                return Err(invalid("the value is not in the list"));
            }
            Value::from(n)
        }
        "copy" if kind(value) == Kind::List => list(items(state, value)?),
        _ => match value.downcast_object_ref::<List>() {
            Some(changed) => return list_change(state, value, changed, method, args),
            None => return Ok(None),
        },
    };
    Ok(Some(found))
}

fn list_change(state: &mut State, value: &Value, changed: &List, method: &str, args: &[Value]) -> Found {
    let mut result = Value::from(());
    match method {
        "append" => {
            let [item] = bind(args, [""])?;
            let item = required(item)?;
            check_store(state, value, &item)?;
            changed.items().push(item);
        }
        "extend" => {
            let [more] = bind(args, [""])?;
            let more = items(state, &required(more)?)?;
            for item in &more {
                check_store(state, value, item)?;
            }
            changed.items().extend(more);
        }
        "insert" => {
            let [at, item] = bind(args, ["", ""])?;
            let (at, item) = (integer(at)?.unwrap_or(0), required(item)?);
            check_store(state, value, &item)?;
            spend(state, changed.items().len() as u64 * MOVE)?;
            let mut all = changed.items();
            let n = all.len() as i64;
            let at = if at < 0 { at.saturating_add(n) } else { at }.clamp(0, n);
            all.insert(at as usize, item);
        }
        "pop" => {
            let [at] = bind(args, [""])?;
            let at = integer(at)?.unwrap_or(-1);
            if at != -1 {
                spend(state, changed.items().len() as u64 * MOVE)?;
            }
            let mut all = changed.items();
            let at = if at < 0 {
                at.saturating_add(all.len() as i64)
            } else {
                at
            };
            let at = usize::try_from(at).ok().filter(|at| *at < all.len());
            result = all.remove(at.ok_or_else(|| invalid("pop index out of range"))?);
        }
        "remove" => {
            let [wanted] = bind(args, [""])?;
            let at = list_method(state, value, "index", &[required(wanted)?])?;
            let at = at.and_then(|at| at.as_usize()).unwrap_or_default();
            changed.items().remove(at);
        }
        "reverse" => {
            let [] = bind(args, [])?;
            spend(state, changed.items().len() as u64 * MOVE)?;
            changed.items().reverse();
        }
        "sort" => {
            let [reverse] = bind(args, ["reverse"])?;
            let all = changed.items().clone();
            let keys = all.clone();
            let order = sorted(state, &keys, flag(&reverse))?;
            *changed.items() = order.into_iter().map(|i| all[i].clone()).collect();
        }
        "clear" => {
            let [] = bind(args, [])?;
            let removed = std::mem::take(&mut *changed.items());
            drop(list(removed));
        }
        _ => return Ok(None),
    }
    Ok(Some(result))
}

/// Returns the stable order of keys, as their indices. Fails if two keys cannot be compared.
pub(super) fn sorted(state: &mut State, keys: &[Value], reverse: bool) -> Result<Vec<usize>, Error> {
    let mut order: Vec<usize> = (0..keys.len()).collect();
    merge_sort(state, keys, &mut order, reverse)?;
    Ok(order)
}

/// Sorts indices by their keys. The standard library's sort must not be used with a comparison that fails.
fn merge_sort(state: &mut State, keys: &[Value], range: &mut [usize], reverse: bool) -> Result<(), Error> {
    if range.len() < 2 {
        return Ok(());
    }
    let middle = range.len() / 2;
    merge_sort(state, keys, &mut range[..middle], reverse)?;
    merge_sort(state, keys, &mut range[middle..], reverse)?;
    let (left, right) = (range[..middle].to_vec(), range[middle..].to_vec());
    let (mut i, mut j) = (0, 0);
    for slot in range.iter_mut() {
        let takes_right = match (left.get(i), right.get(j)) {
            (Some(&l), Some(&r)) => {
                let (a, b) = if reverse {
                    (&keys[l], &keys[r])
                } else {
                    (&keys[r], &keys[l])
                };
                order(state, a, b, "<")? == Some(Ordering::Less)
            }
            (left, _) => left.is_none(),
        };
        *slot = if takes_right { right[j] } else { left[i] };
        if takes_right { j += 1 } else { i += 1 }
    }
    Ok(())
}
