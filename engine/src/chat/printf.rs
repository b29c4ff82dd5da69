//! Python's formatting of strings: `%` and `str.format`.

use super::args::{invalid, split};
use super::meter::spend;
use super::numbers::{Number, float, number, whole};
use super::repr::{code_point, float_text, python_exponent, repr_of, text_of};
use super::values::{Kind, items, kind, type_name};
use minijinja::{Error, State, Value};

/// Maximum width and precision.
const MAX_WIDTH: usize = 100_000;

/// Flags of a conversion, in the terms of `format`.
#[derive(Clone, Debug)]
struct Spec {
    fill: char,
    /// `<`, `>`, `^`, `=`, or the default of the type.
    align: Option<char>,
    /// `+`, a space, or `-`.
    sign: char,
    alternate: bool,
    width: usize,
    /// Separator of thousands.
    grouping: Option<char>,
    precision: Option<usize>,
    conversion: Option<char>,
}

impl Default for Spec {
    fn default() -> Spec {
        Spec {
            fill: ' ',
            align: None,
            sign: '-',
            alternate: false,
            width: 0,
            grouping: None,
            precision: None,
            conversion: None,
        }
    }
}

/// Implements `text % values`.
pub(super) fn percent(state: &mut State, text: &str, values: &Value) -> Result<Value, Error> {
    let is_tuple = kind(values) == Kind::Tuple;
    let all = if is_tuple {
        items(state, values)?
    } else {
        vec![values.clone()]
    };
    let mut next = all.iter();
    let mut out = String::new();
    let mut chars = text.chars().peekable();
    while let Some(c) = chars.next() {
        if c != '%' {
            out.push(c);
            continue;
        }
        if chars.next_if_eq(&'%').is_some() {
            out.push('%');
            continue;
        }
        let mut key = None;
        if chars.next_if_eq(&'(').is_some() {
            let name: String = std::iter::from_fn(|| chars.next_if(|c| *c != ')')).collect();
            chars.next();
            key = Some(name);
        }
        let mut spec = flags(&mut chars);
        let mut count = |chars: &mut std::iter::Peekable<std::str::Chars>| {
            if chars.next_if_eq(&'*').is_some() {
                let n = next
                    .next()
                    .and_then(Value::as_i64)
                    .ok_or_else(|| invalid("* wants int"))?;
                return width(&n.unsigned_abs().to_string());
            }
            width(&digits(chars))
        };
        spec.width = count(&mut chars)?;
        if chars.next_if_eq(&'.').is_some() {
            spec.precision = Some(count(&mut chars)?);
        }
        while chars.next_if(|c| "hlL".contains(*c)).is_some() {}
        let conversion = chars.next().ok_or_else(|| invalid("incomplete format"))?;
        let value = match key {
            Some(key) if kind(values) == Kind::Dict => {
                let found = values.get_attr(&key)?;
                if found.is_undefined() {
                    return Err(invalid(format!("no value for the key {key:?}")));
                }
                found
            }
            Some(_) => return Err(invalid("format requires a mapping")),
            None => next
                .next()
                .cloned()
                .ok_or_else(|| invalid("not enough arguments for format string"))?,
        };
        out.push_str(&converted(state, &value, spec, conversion)?);
    }
    if next.next().is_some() && kind(values) != Kind::Dict {
        return Err(invalid("not all arguments converted during string formatting"));
    }
    Ok(Value::from(out))
}

/// Reads the flags of a conversion.
fn flags(chars: &mut std::iter::Peekable<std::str::Chars>) -> Spec {
    let mut spec = Spec::default();
    while let Some(flag) = chars.next_if(|c| "#0- +".contains(*c)) {
        match flag {
            '#' => spec.alternate = true,
            '0' if spec.align.is_none() => (spec.fill, spec.align) = ('0', Some('=')),
            '-' => (spec.fill, spec.align) = (' ', Some('<')),
            '+' => spec.sign = '+',
            ' ' if spec.sign != '+' => spec.sign = ' ',
            _ => {}
        }
    }
    spec
}

fn digits(chars: &mut std::iter::Peekable<std::str::Chars>) -> String {
    std::iter::from_fn(|| chars.next_if(char::is_ascii_digit)).collect()
}

fn width(digits: &str) -> Result<usize, Error> {
    if digits.is_empty() {
        return Ok(0);
    }
    match digits.parse::<usize>() {
        Ok(n) if n <= MAX_WIDTH => Ok(n),
        _ => Err(invalid(format!("a width or precision exceeds {MAX_WIDTH}"))),
    }
}

fn converted(state: &mut State, value: &Value, mut spec: Spec, conversion: char) -> Result<String, Error> {
    let is_number = matches!(kind(value), Kind::Int | Kind::Float | Kind::Bool);
    let text = match conversion {
        's' => text_of(state, value)?,
        'r' => repr_of(state, value)?,
        'a' => ascii(&repr_of(state, value)?),
        'c' => match (value.as_str(), value.as_i64()) {
            (Some(text), _) if text.chars().count() == 1 => text.to_owned(),
            (_, Some(n)) => u32::try_from(n)
                .ok()
                .and_then(char::from_u32)
                .map(String::from)
                .unwrap_or_default(),
            _ => return Err(invalid("%c requires an integer or a character")),
        },
        'd' | 'i' | 'u' | 'x' | 'X' | 'o' | 'e' | 'E' | 'f' | 'F' | 'g' | 'G' if !is_number => {
            return Err(invalid(format!(
                "%{conversion} format: a number is required, not {}",
                type_name(value)
            )));
        }
        'd' | 'i' | 'u' | 'x' | 'X' | 'o' => {
            let needs_integer = || invalid(format!("%{conversion} format: an integer is required"));
            let n = match number(value) {
                Some(Number::Int(n)) => n,
                Some(Number::Float(x)) if !"xXo".contains(conversion) => {
                    whole(x, "a formatted number")?.ok_or_else(needs_integer)?
                }
                _ => return Err(needs_integer()),
            };
            spec.conversion = Some(if "iu".contains(conversion) { 'd' } else { conversion });
            let digits = spec.precision.take().unwrap_or(0);
            return integer(state, n, &spec, digits);
        }
        'e' | 'E' | 'f' | 'F' | 'g' | 'G' => {
            spec.conversion = Some(conversion);
            return real(state, number(value).map_or(f64::NAN, float), &spec);
        }
        other => return Err(invalid(format!("unsupported format character {other:?}"))),
    };
    let text: String = match spec.precision {
        Some(n) => text.chars().take(n).collect(),
        None => text,
    };
    // Flags for numbers do not apply to text.
    let align = if spec.align == Some('<') { '<' } else { '>' };
    padded(state, "", &text, &Spec { fill: ' ', ..spec }, align)
}

fn ascii(text: &str) -> String {
    text.chars()
        .map(|c| if c.is_ascii() { c.to_string() } else { code_point(c) })
        .collect()
}

/// Pads a text to the width; the sign or prefix comes before the padding of `=`.
fn padded(state: &mut State, sign: &str, digits: &str, spec: &Spec, align: char) -> Result<String, Error> {
    let n = sign.chars().count() + digits.chars().count();
    let missing = spec.width.saturating_sub(n);
    spend(state, (missing * spec.fill.len_utf8() + digits.len()) as u64)?;
    let fill = |n: usize| spec.fill.to_string().repeat(n);
    Ok(match align {
        '<' => format!("{sign}{digits}{}", fill(missing)),
        '^' => format!("{}{sign}{digits}{}", fill(missing / 2), fill(missing - missing / 2)),
        '=' => format!("{sign}{}{digits}", fill(missing)),
        _ => format!("{}{sign}{digits}", fill(missing)),
    })
}

fn sign_of(is_negative: bool, spec: &Spec) -> &'static str {
    match spec.sign {
        _ if is_negative => "-",
        '+' => "+",
        ' ' => " ",
        _ => "",
    }
}

/// Inserts separators between groups of digits.
fn grouped(digits: &str, separator: Option<char>, size: usize) -> String {
    let Some(separator) = separator else {
        return digits.to_owned();
    };
    let mut out = String::new();
    for (i, c) in digits.chars().enumerate() {
        if i > 0 && (digits.len() - i).is_multiple_of(size) {
            out.push(separator);
        }
        out.push(c);
    }
    out
}

fn integer(state: &mut State, n: i128, spec: &Spec, min_digits: usize) -> Result<String, Error> {
    let magnitude = n.unsigned_abs();
    let (prefix, digits) = match spec.conversion.unwrap_or('d') {
        'x' => ("0x", format!("{magnitude:x}")),
        'X' => ("0X", format!("{magnitude:X}")),
        'o' => ("0o", format!("{magnitude:o}")),
        'b' => ("0b", format!("{magnitude:b}")),
        _ => ("", magnitude.to_string()),
    };
    let digits = format!("{}{digits}", "0".repeat(min_digits.saturating_sub(digits.len())));
    let digits = grouped(&digits, spec.grouping, if prefix.is_empty() { 3 } else { 4 });
    let prefix = if spec.alternate { prefix } else { "" };
    let sign = format!("{}{prefix}", sign_of(n < 0, spec));
    padded(state, &sign, &digits, spec, spec.align.unwrap_or('>'))
}

fn real(state: &mut State, x: f64, spec: &Spec) -> Result<String, Error> {
    let conversion = spec.conversion.unwrap_or('r');
    let magnitude = x.abs();
    let precision = spec.precision.unwrap_or(6);
    let mut text = match conversion.to_ascii_lowercase() {
        _ if !magnitude.is_finite() => float_text(magnitude),
        'e' => python_exponent(&format!("{magnitude:.precision$e}")),
        'f' => format!("{magnitude:.precision$}"),
        '%' => format!("{:.precision$}%", magnitude * 100.0),
        'r' if spec.precision.is_none() => float_text(magnitude),
        'r' => general(magnitude, precision, true, spec.alternate),
        _ => general(magnitude, precision, false, spec.alternate),
    };
    if conversion.is_ascii_uppercase() {
        text = text.to_ascii_uppercase();
    }
    if spec.grouping.is_some() {
        let end = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
        text = grouped(&text[..end], spec.grouping, 3) + &text[end..];
    }
    let sign = sign_of(x.is_sign_negative() && !x.is_nan(), spec);
    padded(state, sign, &text, spec, spec.align.unwrap_or('>'))
}

/// Formats with a number of significant digits. With `is_default`, the text has a fraction or an exponent.
fn general(x: f64, precision: usize, is_default: bool, keeps_zeros: bool) -> String {
    let precision = precision.max(1);
    let scientific = format!("{x:.*e}", precision - 1);
    let exponent: i64 = scientific
        .split_once('e')
        .and_then(|(_, e)| e.parse().ok())
        .unwrap_or(0);
    let without_zeros = |text: &str| {
        if text.contains('.') && !keeps_zeros {
            text.trim_end_matches('0').trim_end_matches('.').to_owned()
        } else {
            text.to_owned()
        }
    };
    let limit = precision as i64 - i64::from(is_default);
    if exponent < -4 || exponent >= limit {
        let (mantissa, exponent) = scientific.split_once('e').unwrap_or((&scientific, "0"));
        return python_exponent(&format!("{}e{exponent}", without_zeros(mantissa)));
    }
    let decimals = (precision as i64 - 1 - exponent).max(0) as usize;
    let text = without_zeros(&format!("{x:.decimals$}"));
    if is_default && !text.contains('.') {
        text + ".0"
    } else {
        text
    }
}

/// Implements `text.format(…)`.
pub(super) fn format(state: &mut State, text: &str, args: &[Value]) -> Result<Value, Error> {
    let (positional, named) = split(args);
    let mut fields = Fields {
        positional,
        named,
        next: 0,
    };
    fields.format(state, text, 0).map(Value::from)
}

/// Arguments of `str.format`.
struct Fields<'a> {
    positional: &'a [Value],
    named: Option<&'a Value>,
    next: usize,
}

impl Fields<'_> {
    fn format(&mut self, state: &mut State, text: &str, depth: usize) -> Result<String, Error> {
        if depth > 2 {
            return Err(invalid("format fields are nested too deeply"));
        }
        let mut out = String::new();
        let mut rest = text;
        while let Some(at) = rest.find(['{', '}']) {
            out.push_str(&rest[..at]);
            rest = &rest[at..];
            if rest.starts_with("{{") || rest.starts_with("}}") {
                out.push_str(&rest[..1]);
                rest = &rest[2..];
                continue;
            }
            let end = field_end(rest).ok_or_else(|| invalid("a brace in the format is not closed"))?;
            let field = self.field(state, &rest[1..end], depth)?;
            out.push_str(&field);
            rest = &rest[end + 1..];
        }
        out.push_str(rest);
        Ok(out)
    }

    fn field(&mut self, state: &mut State, field: &str, depth: usize) -> Result<String, Error> {
        let (name, spec) = field.split_once(':').unwrap_or((field, ""));
        let (name, conversion) = name.split_once('!').map_or((name, None), |(name, c)| (name, Some(c)));
        let mut value = self.value(name)?;
        match conversion {
            None => {}
            Some("s") => value = Value::from(text_of(state, &value)?),
            Some("r") => value = Value::from(repr_of(state, &value)?),
            Some("a") => value = Value::from(ascii(&repr_of(state, &value)?)),
            Some(_) => return Err(invalid("unknown conversion in a format")),
        }
        let spec = if spec.contains('{') {
            self.format(state, spec, depth + 1)?
        } else {
            spec.to_owned()
        };
        formatted(state, &value, &spec)
    }

    /// Returns the value of `name.attribute[item]`.
    fn value(&mut self, name: &str) -> Result<Value, Error> {
        let end = name.find(['.', '[']).unwrap_or(name.len());
        let (first, mut rest) = name.split_at(end);
        let mut value = match first.parse::<usize>() {
            Ok(i) => self.positional.get(i).cloned(),
            Err(_) if first.is_empty() => {
                self.next += 1;
                self.positional.get(self.next - 1).cloned()
            }
            Err(_) => self
                .named
                .and_then(|named| named.get_attr(first).ok())
                .filter(|v| !v.is_undefined()),
        }
        .ok_or_else(|| invalid(format!("no argument for the format field {{{first}}}")))?;
        while !rest.is_empty() {
            if let Some(item) = rest.strip_prefix('[') {
                let (key, behind) = item
                    .split_once(']')
                    .ok_or_else(|| invalid("a bracket in the format is not closed"))?;
                value = match key.parse::<i64>() {
                    Ok(i) => value.get_item(&Value::from(i))?,
                    Err(_) => value.get_item(&Value::from(key))?,
                };
                rest = behind;
            } else {
                let attribute = rest.trim_start_matches('.');
                let end = attribute.find(['.', '[']).unwrap_or(attribute.len());
                value = value.get_attr(&attribute[..end])?;
                rest = &attribute[end..];
            }
        }
        Ok(value)
    }
}

/// Returns the end of a field that starts with a brace and may contain others.
fn field_end(text: &str) -> Option<usize> {
    let mut depth = 0;
    for (at, c) in text.char_indices() {
        match c {
            '{' => depth += 1,
            '}' if depth <= 1 => return if depth == 1 { Some(at) } else { None },
            '}' => depth -= 1,
            _ => {}
        }
    }
    None
}

/// Formats a value by a format specification.
fn formatted(state: &mut State, value: &Value, text: &str) -> Result<String, Error> {
    let spec = spec_of(text)?;
    match (kind(value), spec.conversion) {
        (Kind::Int | Kind::Bool, Some('e' | 'E' | 'f' | 'F' | 'g' | 'G' | '%')) | (Kind::Float, _) => {
            real(state, number(value).map_or(f64::NAN, float), &spec)
        }
        (Kind::Bool, None) if text.is_empty() => text_of(state, value),
        (Kind::Int | Kind::Bool, _) => match number(value) {
            Some(Number::Int(n)) => integer(state, n, &spec, 0),
            _ => text_of(state, value),
        },
        (Kind::Str, None | Some('s')) => {
            let text = value.as_str().unwrap_or_default();
            let text: String = text.chars().take(spec.precision.unwrap_or(usize::MAX)).collect();
            padded(state, "", &text, &spec, spec.align.unwrap_or('<'))
        }
        _ if text.is_empty() => text_of(state, value),
        _ => Err(invalid(format!(
            "unsupported format {text:?} for a value of type {}",
            type_name(value)
        ))),
    }
}

fn spec_of(text: &str) -> Result<Spec, Error> {
    let mut spec = Spec::default();
    let is_align = |c: &char| matches!(c, '<' | '>' | '^' | '=');
    let second = text.chars().nth(1).filter(is_align);
    let first = text.chars().next().filter(is_align);
    let mut chars = text.chars().peekable();
    if second.is_some() {
        spec.fill = chars.next().unwrap_or(' ');
        spec.align = chars.next();
    } else if first.is_some() {
        spec.align = chars.next();
    }
    if let Some(sign) = chars.next_if(|c| "+- ".contains(*c)) {
        spec.sign = sign;
    }
    spec.alternate = chars.next_if_eq(&'#').is_some();
    if chars.next_if_eq(&'0').is_some() && spec.align.is_none() {
        (spec.fill, spec.align) = ('0', Some('='));
    }
    spec.width = width(&digits(&mut chars))?;
    spec.grouping = chars.next_if(|c| ",_".contains(*c));
    if chars.next_if_eq(&'.').is_some() {
        spec.precision = Some(width(&digits(&mut chars))?);
    }
    spec.conversion = chars.next();
    match chars.next() {
        None => Ok(spec),
        Some(_) => Err(invalid(format!("invalid format {text:?}"))),
    }
}
