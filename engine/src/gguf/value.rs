//! Metadata values: 13 types, compact arrays, and lossless conversions.

use std::borrow::Cow;
use std::fmt;

macro_rules! value_types {
    ($( $variant:ident = $id:literal, $name:literal, min $min:literal; )*) => {
        /// Type of a metadata value. The discriminant is the id stored in files.
        #[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
        #[repr(u32)]
        #[allow(missing_docs)]
        pub enum ValueType { $( $variant = $id, )* }

        impl ValueType {
            /// All types, in id order.
            pub const ALL: &'static [ValueType] = &[ $( ValueType::$variant, )* ];

            /// Returns the type with this id.
            pub const fn from_id(id: u32) -> Option<ValueType> {
                match id { $( $id => Some(ValueType::$variant), )* _ => None }
            }

            /// Returns the short name, such as `u32`.
            pub const fn name(self) -> &'static str {
                match self { $( ValueType::$variant => $name, )* }
            }

            /// Returns the minimum encoded size of a value in bytes.
            pub const fn min_bytes(self) -> usize {
                match self { $( ValueType::$variant => $min, )* }
            }
        }
    };
}

value_types! {
    U8 = 0, "u8", min 1;
    I8 = 1, "i8", min 1;
    U16 = 2, "u16", min 2;
    I16 = 3, "i16", min 2;
    U32 = 4, "u32", min 4;
    I32 = 5, "i32", min 4;
    F32 = 6, "f32", min 4;
    Bool = 7, "bool", min 1;
    String = 8, "string", min 8;
    Array = 9, "array", min 12;
    U64 = 10, "u64", min 8;
    I64 = 11, "i64", min 8;
    F64 = 12, "f64", min 8;
}

impl ValueType {
    /// Returns the id stored in files.
    pub const fn id(self) -> u32 {
        self as u32
    }
}

impl fmt::Display for ValueType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

/// Metadata value.
#[derive(Clone, PartialEq, Debug)]
#[allow(missing_docs)]
pub enum Value {
    U8(u8),
    I8(i8),
    U16(u16),
    I16(i16),
    U32(u32),
    I32(i32),
    F32(f32),
    Bool(bool),
    /// Bytes that should be UTF-8. Validation happens on access ([`Value::as_str`]), not when the file is
    /// opened.
    String(Box<[u8]>),
    Array(Array),
    U64(u64),
    I64(i64),
    F64(f64),
}

/// Homogeneous array of metadata values.
#[derive(Clone, PartialEq, Debug)]
#[allow(missing_docs)]
pub enum Array {
    U8(Vec<u8>),
    I8(Vec<i8>),
    U16(Vec<u16>),
    I16(Vec<i16>),
    U32(Vec<u32>),
    I32(Vec<i32>),
    F32(Vec<f32>),
    Bool(Vec<bool>),
    String(StringArray),
    Nested(Vec<Array>),
    U64(Vec<u64>),
    I64(Vec<i64>),
    F64(Vec<f64>),
}

/// String array in one allocation, with an overhead of 4 bytes per string.
#[derive(Clone, PartialEq, Eq, Default)]
pub struct StringArray {
    bytes: Vec<u8>,
    /// End offset of each string in `bytes`; each string starts at the end of its predecessor.
    ends: Vec<u32>,
}

impl StringArray {
    /// Creates an empty array with capacity for `n` strings of `bytes` bytes in total.
    pub fn with_capacity(n: usize, bytes: usize) -> Self {
        StringArray {
            bytes: Vec::with_capacity(bytes),
            ends: Vec::with_capacity(n),
        }
    }

    /// Appends a string. Returns false and leaves the array unchanged if its size would exceed 4 GiB.
    #[must_use]
    pub fn push(&mut self, s: &[u8]) -> bool {
        let Ok(end) = u32::try_from(self.bytes.len().saturating_add(s.len())) else {
            return false;
        };
        self.bytes.extend_from_slice(s);
        self.ends.push(end);
        true
    }

    /// Returns the number of strings.
    pub fn len(&self) -> usize {
        self.ends.len()
    }

    /// Returns true if the array has no strings.
    pub fn is_empty(&self) -> bool {
        self.ends.is_empty()
    }

    /// Returns the total length of all strings in bytes.
    pub fn total_bytes(&self) -> usize {
        self.bytes.len()
    }

    /// Returns the raw bytes of string `i`.
    pub fn get(&self, i: usize) -> Option<&[u8]> {
        let end = *self.ends.get(i)? as usize;
        let start = if i == 0 { 0 } else { self.ends[i - 1] as usize };
        Some(&self.bytes[start..end])
    }

    /// Returns string `i`, or `None` if `i` is out of range or the bytes are not UTF-8.
    pub fn get_str(&self, i: usize) -> Option<&str> {
        std::str::from_utf8(self.get(i)?).ok()
    }

    /// Iterates over the raw bytes of all strings.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = &[u8]> + Clone {
        let mut start = 0;
        self.ends.iter().map(move |&end| {
            let s = &self.bytes[start..end as usize];
            start = end as usize;
            s
        })
    }
}

impl fmt::Debug for StringArray {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list()
            .entries(self.iter().map(String::from_utf8_lossy))
            .finish()
    }
}

impl std::ops::Index<usize> for StringArray {
    type Output = [u8];

    /// Panics if `i` is out of range.
    fn index(&self, i: usize) -> &[u8] {
        self.get(i).expect("string index out of range")
    }
}

impl<S: AsRef<[u8]>> FromIterator<S> for StringArray {
    /// Panics if the strings exceed 4 GiB in total; [`StringArray::push`] is the fallible alternative.
    fn from_iter<I: IntoIterator<Item = S>>(strings: I) -> Self {
        let mut array = StringArray::default();
        for s in strings {
            assert!(array.push(s.as_ref()), "string array exceeds 4 GiB");
        }
        array
    }
}

macro_rules! each_array {
    ($array:expr, $v:ident => $e:expr) => {
        match $array {
            Array::U8($v) => $e,
            Array::I8($v) => $e,
            Array::U16($v) => $e,
            Array::I16($v) => $e,
            Array::U32($v) => $e,
            Array::I32($v) => $e,
            Array::F32($v) => $e,
            Array::Bool($v) => $e,
            Array::String($v) => $e,
            Array::Nested($v) => $e,
            Array::U64($v) => $e,
            Array::I64($v) => $e,
            Array::F64($v) => $e,
        }
    };
}

impl Array {
    /// Returns the number of elements.
    pub fn len(&self) -> usize {
        each_array!(self, v => v.len())
    }

    /// Returns true if the array has no elements.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Returns the element type.
    pub fn element_type(&self) -> ValueType {
        match self {
            Array::U8(_) => ValueType::U8,
            Array::I8(_) => ValueType::I8,
            Array::U16(_) => ValueType::U16,
            Array::I16(_) => ValueType::I16,
            Array::U32(_) => ValueType::U32,
            Array::I32(_) => ValueType::I32,
            Array::F32(_) => ValueType::F32,
            Array::Bool(_) => ValueType::Bool,
            Array::String(_) => ValueType::String,
            Array::Nested(_) => ValueType::Array,
            Array::U64(_) => ValueType::U64,
            Array::I64(_) => ValueType::I64,
            Array::F64(_) => ValueType::F64,
        }
    }

    /// Returns element `i`; strings and nested arrays are cloned.
    pub fn get(&self, i: usize) -> Option<Value> {
        Some(match self {
            Array::U8(v) => Value::U8(*v.get(i)?),
            Array::I8(v) => Value::I8(*v.get(i)?),
            Array::U16(v) => Value::U16(*v.get(i)?),
            Array::I16(v) => Value::I16(*v.get(i)?),
            Array::U32(v) => Value::U32(*v.get(i)?),
            Array::I32(v) => Value::I32(*v.get(i)?),
            Array::F32(v) => Value::F32(*v.get(i)?),
            Array::Bool(v) => Value::Bool(*v.get(i)?),
            Array::String(v) => Value::String(v.get(i)?.into()),
            Array::Nested(v) => Value::Array(v.get(i)?.clone()),
            Array::U64(v) => Value::U64(*v.get(i)?),
            Array::I64(v) => Value::I64(*v.get(i)?),
            Array::F64(v) => Value::F64(*v.get(i)?),
        })
    }
}

impl Value {
    /// Returns the type of the value.
    pub fn value_type(&self) -> ValueType {
        match self {
            Value::U8(_) => ValueType::U8,
            Value::I8(_) => ValueType::I8,
            Value::U16(_) => ValueType::U16,
            Value::I16(_) => ValueType::I16,
            Value::U32(_) => ValueType::U32,
            Value::I32(_) => ValueType::I32,
            Value::F32(_) => ValueType::F32,
            Value::Bool(_) => ValueType::Bool,
            Value::String(_) => ValueType::String,
            Value::Array(_) => ValueType::Array,
            Value::U64(_) => ValueType::U64,
            Value::I64(_) => ValueType::I64,
            Value::F64(_) => ValueType::F64,
        }
    }

    /// Returns any non-negative integer as `u64`.
    pub fn as_u64(&self) -> Option<u64> {
        match *self {
            Value::U8(v) => Some(v.into()),
            Value::U16(v) => Some(v.into()),
            Value::U32(v) => Some(v.into()),
            Value::U64(v) => Some(v),
            _ => u64::try_from(self.as_i64()?).ok(),
        }
    }

    /// Returns any integer that fits into `i64`.
    pub fn as_i64(&self) -> Option<i64> {
        match *self {
            Value::U8(v) => Some(v.into()),
            Value::I8(v) => Some(v.into()),
            Value::U16(v) => Some(v.into()),
            Value::I16(v) => Some(v.into()),
            Value::U32(v) => Some(v.into()),
            Value::I32(v) => Some(v.into()),
            Value::U64(v) => i64::try_from(v).ok(),
            Value::I64(v) => Some(v),
            _ => None,
        }
    }

    /// Returns any float, or any integer that `f64` represents exactly.
    pub fn as_f64(&self) -> Option<f64> {
        match *self {
            Value::F32(v) => Some(v.into()),
            Value::F64(v) => Some(v),
            _ => {
                let v = self.as_i64()?;
                if v.unsigned_abs() <= 1 << f64::MANTISSA_DIGITS {
                    Some(v as f64)
                } else {
                    None
                }
            }
        }
    }

    /// Returns any float, or any integer that `f32` represents exactly. An f64 is rounded; `None` if it
    /// overflows f32.
    pub fn as_f32(&self) -> Option<f32> {
        match *self {
            Value::F32(v) => Some(v),
            Value::F64(v) => {
                let rounded = v as f32;
                if rounded.is_finite() || !v.is_finite() {
                    Some(rounded)
                } else {
                    None
                }
            }
            _ => {
                let v = self.as_i64()?;
                if v.unsigned_abs() <= 1 << f32::MANTISSA_DIGITS {
                    Some(v as f32)
                } else {
                    None
                }
            }
        }
    }

    /// Returns a bool; numbers are not converted.
    pub fn as_bool(&self) -> Option<bool> {
        match *self {
            Value::Bool(v) => Some(v),
            _ => None,
        }
    }

    /// Returns the raw bytes of a string.
    pub fn as_bytes(&self) -> Option<&[u8]> {
        match self {
            Value::String(v) => Some(v),
            _ => None,
        }
    }

    /// Returns a string if it is valid UTF-8.
    pub fn as_str(&self) -> Option<&str> {
        std::str::from_utf8(self.as_bytes()?).ok()
    }

    /// Returns an array.
    pub fn as_array(&self) -> Option<&Array> {
        match self {
            Value::Array(v) => Some(v),
            _ => None,
        }
    }

    /// Describes the value for error messages: its type and, if short, its content.
    pub fn describe(&self) -> String {
        match self {
            Value::Array(a) => format!("array of {} {}", a.len(), a.element_type()),
            Value::String(s) if s.len() > 64 => format!("string of {} bytes", s.len()),
            Value::String(s) if std::str::from_utf8(s).is_err() => format!("string that is not UTF-8 {self}"),
            v => format!("{} {v}", v.value_type()),
        }
    }
}

/// Strings are quoted and escaped; arrays show only their first elements.
impl fmt::Display for Value {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Value::U8(v) => v.fmt(f),
            Value::I8(v) => v.fmt(f),
            Value::U16(v) => v.fmt(f),
            Value::I16(v) => v.fmt(f),
            Value::U32(v) => v.fmt(f),
            Value::I32(v) => v.fmt(f),
            Value::F32(v) => v.fmt(f),
            Value::Bool(v) => v.fmt(f),
            Value::String(v) => write!(f, "{:?}", String::from_utf8_lossy(v)),
            Value::Array(v) => v.fmt(f),
            Value::U64(v) => v.fmt(f),
            Value::I64(v) => v.fmt(f),
            Value::F64(v) => v.fmt(f),
        }
    }
}

/// Shows the first 8 elements and the total length if the array is longer.
impl fmt::Display for Array {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        const SHOWN: usize = 8;
        f.write_str("[")?;
        for i in 0..self.len().min(SHOWN) {
            if i > 0 {
                f.write_str(", ")?;
            }
            if let Some(v) = self.get(i) {
                v.fmt(f)?;
            }
        }
        if self.len() > SHOWN {
            write!(f, ", … {} in all", self.len())?;
        }
        f.write_str("]")
    }
}

/// Lossless conversion from a [`Value`]. [`Metadata::require`](super::Metadata::require) uses the trait to
/// read a key as `T`.
pub trait FromValue<'a>: Sized {
    /// Noun phrase for the expected value in error messages.
    const EXPECTED: &'static str;

    /// Converts the value, or returns `None` if the conversion would lose information.
    fn from_value(value: &'a Value) -> Option<Self>;
}

macro_rules! from_value {
    ($( $ty:ty, $expected:literal, $value:ident => $convert:expr; )*) => {
        $( impl<'a> FromValue<'a> for $ty {
            const EXPECTED: &'static str = $expected;

            fn from_value($value: &'a Value) -> Option<Self> {
                $convert
            }
        } )*
    };
}

from_value! {
    u8, "an integer in 0..=255", v => v.as_u64()?.try_into().ok();
    u16, "an integer in 0..=65535", v => v.as_u64()?.try_into().ok();
    u32, "an integer in 0..2^32", v => v.as_u64()?.try_into().ok();
    u64, "an integer in 0..2^64", v => v.as_u64();
    usize, "a non-negative integer", v => v.as_u64()?.try_into().ok();
    i32, "an integer in -2^31..2^31", v => v.as_i64()?.try_into().ok();
    i64, "an integer in -2^63..2^63", v => v.as_i64();
    f32, "a number", v => v.as_f32();
    f64, "a number", v => v.as_f64();
    bool, "a bool", v => v.as_bool();
    &'a [u8], "a string", v => v.as_bytes();
    &'a str, "a UTF-8 string", v => v.as_str();
    String, "a UTF-8 string", v => v.as_str().map(str::to_owned);
    &'a Array, "an array", v => v.as_array();
    &'a Value, "a value", v => Some(v);
    &'a StringArray, "an array of strings", v => match v.as_array()? {
        Array::String(a) => Some(a),
        _ => None,
    };
}

/// Implements [`FromValue`] for arrays of numbers: borrowed if the element types match, else converted
/// element by element.
macro_rules! from_array {
    ($( $ty:ty, $variant:ident, $expected:literal; )*) => {
        $( impl<'a> FromValue<'a> for Cow<'a, [$ty]> {
            const EXPECTED: &'static str = $expected;

            fn from_value(value: &'a Value) -> Option<Self> {
                match value.as_array()? {
                    Array::$variant(v) => Some(Cow::Borrowed(v)),
                    a => convert_elements(a).map(Cow::Owned),
                }
            }
        }

        impl<'a> FromValue<'a> for Vec<$ty> {
            const EXPECTED: &'static str = $expected;

            fn from_value(value: &'a Value) -> Option<Self> {
                Cow::<'a, [$ty]>::from_value(value).map(Cow::into_owned)
            }
        } )*
    };
}

from_array! {
    u32, U32, "an array of integers in 0..2^32";
    i32, I32, "an array of integers in -2^31..2^31";
    u64, U64, "an array of integers in 0..2^64";
    i64, I64, "an array of integers in -2^63..2^63";
    f32, F32, "an array of numbers";
    bool, Bool, "an array of bools";
}

fn convert_elements<T: for<'v> FromValue<'v>>(array: &Array) -> Option<Vec<T>> {
    // Strings and nested arrays never convert to numbers, so return before cloning any element.
    if matches!(array, Array::String(_) | Array::Nested(_)) {
        return if array.is_empty() { Some(Vec::new()) } else { None };
    }
    (0..array.len()).map(|i| T::from_value(&array.get(i)?)).collect()
}

macro_rules! into_value {
    ($( $ty:ty => $variant:ident; )*) => {
        $( impl From<$ty> for Value {
            fn from(v: $ty) -> Value {
                Value::$variant(v)
            }
        }

        impl From<Vec<$ty>> for Value {
            fn from(v: Vec<$ty>) -> Value {
                Value::Array(Array::$variant(v))
            }
        } )*
    };
}

into_value! {
    u8 => U8;
    i8 => I8;
    u16 => U16;
    i16 => I16;
    u32 => U32;
    i32 => I32;
    f32 => F32;
    bool => Bool;
    u64 => U64;
    i64 => I64;
    f64 => F64;
}

impl From<&str> for Value {
    fn from(v: &str) -> Value {
        Value::String(v.as_bytes().into())
    }
}

impl From<String> for Value {
    fn from(v: String) -> Value {
        Value::String(v.into_bytes().into())
    }
}

impl From<Array> for Value {
    fn from(v: Array) -> Value {
        Value::Array(v)
    }
}

impl From<StringArray> for Value {
    fn from(v: StringArray) -> Value {
        Value::Array(Array::String(v))
    }
}
