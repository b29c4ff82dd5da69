//! Python's containers: lists and dictionaries that templates can change, ranges, groups, and bound methods.

use super::args::invalid;
use super::meter::{LimitReached, MAX_DEPTH, NODE, spend};
use indexmap::IndexMap;
use minijinja::value::{Enumerator, Object, ObjectRepr, Tuple, ValueKind};
use minijinja::{Error, State, Value};
use std::cell::RefCell;
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Items of a dictionary in insertion order.
pub(super) type Entries = IndexMap<Value, Value, foldhash::fast::RandomState>;

/// A list.
pub(super) struct List(Mutex<Vec<Value>>);

/// A dictionary.
pub(super) struct Dict(Mutex<Entries>);

/// Python's `range`.
#[derive(Clone, Copy, Debug)]
pub(super) struct Range {
    pub start: i64,
    pub stop: i64,
    pub step: i64,
    pub len: usize,
}

/// An item of `groupby`: a tuple whose items have names.
#[derive(Debug)]
pub(super) struct Group {
    pub key: Value,
    pub list: Value,
}

/// A method that was looked up, but not called.
#[derive(Debug)]
pub(super) struct BoundMethod {
    pub value: Value,
    pub name: String,
}

/// Type of a value in Python's terms.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    Undefined,
    None,
    Bool,
    Int,
    Float,
    Str,
    List,
    Tuple,
    Dict,
    Range,
    /// Functions, macros, namespaces, and other objects.
    Object,
}

/// Returns the type of a value.
pub(super) fn kind(value: &Value) -> Kind {
    match value.kind() {
        ValueKind::Undefined => Kind::Undefined,
        ValueKind::None => Kind::None,
        ValueKind::Bool => Kind::Bool,
        ValueKind::Number if value.is_integer() => Kind::Int,
        ValueKind::Number => Kind::Float,
        ValueKind::String => Kind::Str,
        ValueKind::Seq | ValueKind::Iterable => {
            if value.is_tuple() || value.downcast_object_ref::<Group>().is_some() {
                Kind::Tuple
            } else if value.downcast_object_ref::<Range>().is_some() {
                Kind::Range
            } else {
                Kind::List
            }
        }
        ValueKind::Map if value.downcast_object_ref::<Dict>().is_some() || value.is_kwargs() => Kind::Dict,
        _ => Kind::Object,
    }
}

/// Returns Python's name of a type, for error messages.
pub(super) fn type_name(value: &Value) -> &'static str {
    match kind(value) {
        Kind::Undefined => "Undefined",
        Kind::None => "NoneType",
        Kind::Bool => "bool",
        Kind::Int => "int",
        Kind::Float => "float",
        Kind::Str => "str",
        Kind::List => "list",
        Kind::Tuple => "tuple",
        Kind::Dict => "dict",
        Kind::Range => "range",
        Kind::Object => "object",
    }
}

/// Creates a list.
pub(super) fn list(items: Vec<Value>) -> Value {
    Value::from_object(List(Mutex::new(items)))
}

/// Creates a tuple.
pub(super) fn tuple(items: Vec<Value>) -> Value {
    Value::from(Tuple::new(items))
}

/// Creates a dictionary.
pub(super) fn dict(entries: impl IntoIterator<Item = (Value, Value)>) -> Value {
    Value::from_object(Dict(Mutex::new(entries.into_iter().collect())))
}

/// Converts a literal of the template, so that each evaluation creates new containers.
pub(super) fn fresh(state: &mut State, value: &Value) -> Result<Value, Error> {
    spend(state, NODE)?;
    match kind(value) {
        Kind::List if value.downcast_object_ref::<List>().is_none() => {
            let items = value.try_iter()?.map(|item| fresh(state, &item));
            Ok(list(items.collect::<Result<_, _>>()?))
        }
        _ if value.kind() == ValueKind::Map && is_literal(value) => {
            let mut entries = Entries::default();
            for key in value.try_iter()? {
                hashable(&key)?;
                let item = fresh(state, &value.get_item(&key)?)?;
                entries.insert(key, item);
            }
            Ok(dict(entries))
        }
        _ => Ok(value.clone()),
    }
}

/// Returns true for minijinja's own maps, which literals create.
fn is_literal(map: &Value) -> bool {
    map.as_object()
        .is_some_and(|object| object.type_name().contains("indexmap::"))
}

/// Returns an error if a value cannot be a key.
pub(super) fn hashable(key: &Value) -> Result<(), Error> {
    match kind(key) {
        Kind::List | Kind::Dict => Err(invalid(format!("unhashable type: '{}'", type_name(key)))),
        Kind::Tuple => key.try_iter()?.try_for_each(|item| hashable(&item)),
        _ => Ok(()),
    }
}

/// Returns the items of a value in Python's order of iteration, and charges for the items. Undefined values have no
/// items.
pub(super) fn items(state: &mut State, value: &Value) -> Result<Vec<Value>, Error> {
    iterable(value)?;
    let mut items = Vec::new();
    for item in value.try_iter()? {
        spend(state, NODE)?;
        items.push(item);
    }
    Ok(items)
}

/// Returns an error if a value cannot be iterated.
pub(super) fn iterable(value: &Value) -> Result<(), Error> {
    match kind(value) {
        Kind::None | Kind::Bool | Kind::Int | Kind::Float => {
            Err(invalid(format!("'{}' object is not iterable", type_name(value))))
        }
        _ => Ok(()),
    }
}

/// Returns the entries of a dictionary, and charges for the entries.
pub(super) fn pairs(state: &mut State, map: &Value) -> Result<Vec<(Value, Value)>, Error> {
    let keys = items(state, map)?;
    keys.into_iter()
        .map(|key| {
            let value = map.get_item(&key)?;
            Ok((key, value))
        })
        .collect()
}

impl List {
    /// Locks the items.
    pub fn items(&self) -> MutexGuard<'_, Vec<Value>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Dict {
    /// Locks the entries.
    pub fn entries(&self) -> MutexGuard<'_, Entries> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl fmt::Debug for List {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("List")
    }
}

impl fmt::Debug for Dict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Dict")
    }
}

impl Object for List {
    fn repr(self: &Arc<Self>) -> ObjectRepr {
        ObjectRepr::Seq
    }

    fn get_value(self: &Arc<Self>, key: &Value) -> Option<Value> {
        self.items().get(key.as_usize()?).cloned()
    }

    fn enumerate(self: &Arc<Self>) -> Enumerator {
        Enumerator::Seq(self.items().len())
    }
}

impl Object for Dict {
    fn get_value(self: &Arc<Self>, key: &Value) -> Option<Value> {
        self.entries().get(key).cloned()
    }

    fn enumerate(self: &Arc<Self>) -> Enumerator {
        Enumerator::Values(self.entries().keys().cloned().collect())
    }

    fn enumerator_len(self: &Arc<Self>) -> Option<usize> {
        Some(self.entries().len())
    }
}

impl Object for Range {
    fn repr(self: &Arc<Self>) -> ObjectRepr {
        ObjectRepr::Seq
    }

    fn get_value(self: &Arc<Self>, key: &Value) -> Option<Value> {
        let i = key.as_usize().filter(|i| *i < self.len)?;
        Some(Value::from(self.start + i as i64 * self.step))
    }

    fn enumerate(self: &Arc<Self>) -> Enumerator {
        Enumerator::Seq(self.len)
    }
}

impl Object for Group {
    fn repr(self: &Arc<Self>) -> ObjectRepr {
        ObjectRepr::Seq
    }

    fn get_value(self: &Arc<Self>, key: &Value) -> Option<Value> {
        match (key.as_usize(), key.as_str()) {
            (Some(0), _) | (_, Some("grouper")) => Some(self.key.clone()),
            (Some(1), _) | (_, Some("list")) => Some(self.list.clone()),
            _ => None,
        }
    }

    fn enumerate(self: &Arc<Self>) -> Enumerator {
        Enumerator::Seq(2)
    }
}

impl Object for BoundMethod {
    fn repr(self: &Arc<Self>) -> ObjectRepr {
        ObjectRepr::Plain
    }

    fn call(self: &Arc<Self>, state: &mut State<'_, '_>, args: &[Value]) -> Result<Value, Error> {
        self.value.call_method(state, &self.name, args)
    }

    fn render(self: &Arc<Self>, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { value, name } = &**self;
        write!(f, "<built-in method {name} of {} object>", type_name(value))
    }
}

thread_local! {
    /// Contents of containers that are being dropped; `None` if no drop is in progress.
    static DROPPED: RefCell<Option<Vec<Value>>> = const { RefCell::new(None) };
}

/// Drops values without recursion, because a template can nest lists to any depth by appending.
fn drop_flat(values: impl Iterator<Item = Value>) {
    let mut values: Vec<Value> = values.filter(|value| value.as_object().is_some()).collect();
    if values.is_empty() {
        return;
    }
    let is_nested = DROPPED.try_with(|dropped| match &mut *dropped.borrow_mut() {
        Some(queue) => {
            queue.append(&mut values);
            true
        }
        none => {
            *none = Some(Vec::new());
            false
        }
    });
    if is_nested != Ok(false) {
        return;
    }
    while !values.is_empty() {
        drop(std::mem::take(&mut values));
        values = DROPPED.with(|dropped| dropped.borrow_mut().as_mut().map(std::mem::take).unwrap_or_default());
    }
    DROPPED.with(|dropped| *dropped.borrow_mut() = None);
}

impl Drop for List {
    fn drop(&mut self) {
        let items = self.0.get_mut().unwrap_or_else(PoisonError::into_inner);
        drop_flat(items.drain(..));
    }
}

impl Drop for Dict {
    fn drop(&mut self) {
        let entries = self.0.get_mut().unwrap_or_else(PoisonError::into_inner);
        drop_flat(entries.drain(..).flat_map(|(key, value)| [key, value]));
    }
}

/// Options for visiting a value.
#[derive(Clone, Copy, Default)]
pub(super) struct Visit {
    /// Also charge the bytes of strings, because the following operation reads or copies them.
    pub text: bool,
    /// Reject values that could make a container contain itself.
    pub stores: bool,
    /// Address of the list or dictionary that stores the value.
    pub container: Option<usize>,
}

/// Visits a value and its contents, and charges for each.
pub(super) fn visit(state: &mut State, value: &Value, how: Visit) -> Result<(), Error> {
    visit_at(state, value, how, 0)
}

fn visit_at(state: &mut State, value: &Value, how: Visit, depth: usize) -> Result<(), Error> {
    spend(state, NODE + if how.text { text_len(value) } else { 0 })?;
    deep(depth)?;
    let Some(object) = value.as_object() else { return Ok(()) };
    if how.stores
        && (is_mutable_object(object.type_name()) || (how.container.is_some() && how.container == address(value)))
    {
        return Err(invalid(format!(
            "a value of type {} cannot be stored here",
            type_name(value)
        )));
    }
    match value.kind() {
        ValueKind::Seq | ValueKind::Iterable => {
            for item in value.try_iter()? {
                visit_at(state, &item, how, depth + 1)?;
            }
        }
        ValueKind::Map => {
            for key in value.try_iter()? {
                visit_at(state, &key, how, depth + 1)?;
                if let Ok(item) = value.get_item(&key) {
                    visit_at(state, &item, how, depth + 1)?;
                }
            }
        }
        _ => {}
    }
    Ok(())
}

/// Returns an error if the nesting of a value exceeds the limit.
pub(super) fn deep(depth: usize) -> Result<(), Error> {
    if depth > MAX_DEPTH {
        return Err(LimitReached {
            what: "levels of nesting in a value",
            limit: MAX_DEPTH as u64,
        }
        .into());
    }
    Ok(())
}

/// Returns true for objects that refer to other values without being containers. minijinja's namespace is
/// private and can only be identified by name.
fn is_mutable_object(name: &str) -> bool {
    ["::Namespace", "::BoundMethod", "::Cycler", "::Group", "::Loop"]
        .iter()
        .any(|end| name.ends_with(end))
}

/// Returns the address of a list or dictionary.
fn address(value: &Value) -> Option<usize> {
    let list = value
        .downcast_object_ref::<List>()
        .map(|list| std::ptr::from_ref(list) as usize);
    list.or_else(|| {
        value
            .downcast_object_ref::<Dict>()
            .map(|dict| std::ptr::from_ref(dict) as usize)
    })
}

/// Returns true if two values are the same object, or equal scalars of the same type.
pub(super) fn is_same(a: &Value, b: &Value) -> bool {
    if a.as_object().is_some() || b.as_object().is_some() {
        return address(a).is_some() && address(a) == address(b);
    }
    kind(a) == kind(b) && a == b
}

/// Charges for storing an item, and returns an error if the container would contain itself.
pub(super) fn check_store(state: &mut State, container: &Value, item: &Value) -> Result<(), Error> {
    let container = address(container);
    visit(
        state,
        item,
        Visit {
            text: false,
            stores: true,
            container,
        },
    )
}

/// Charges for a new value: its own bytes, and the bytes of strings directly inside.
pub(super) fn charge_new(state: &mut State, value: &Value) -> Result<(), Error> {
    spend(state, NODE + text_len(value))?;
    if matches!(value.kind(), ValueKind::Seq | ValueKind::Iterable) {
        for item in value.try_iter()? {
            spend(state, NODE + text_len(&item))?;
        }
    }
    Ok(())
}

/// Returns the number of bytes of a string, otherwise 0.
pub(super) fn text_len(value: &Value) -> u64 {
    value.as_str().map_or(0, str::len) as u64
}
