//! Names of the methods of Python's types.

use super::values::Kind;

const OF_STRINGS: &[&str] = &[
    "capitalize",
    "casefold",
    "center",
    "count",
    "encode",
    "endswith",
    "expandtabs",
    "find",
    "format",
    "format_map",
    "index",
    "isalnum",
    "isalpha",
    "isascii",
    "isdecimal",
    "isdigit",
    "isidentifier",
    "islower",
    "isnumeric",
    "isprintable",
    "isspace",
    "istitle",
    "isupper",
    "join",
    "ljust",
    "lower",
    "lstrip",
    "maketrans",
    "partition",
    "removeprefix",
    "removesuffix",
    "replace",
    "rfind",
    "rindex",
    "rjust",
    "rpartition",
    "rsplit",
    "rstrip",
    "split",
    "splitlines",
    "startswith",
    "strip",
    "swapcase",
    "title",
    "translate",
    "upper",
    "zfill",
];
const OF_LISTS: &[&str] = &[
    "append", "clear", "copy", "count", "extend", "index", "insert", "pop", "remove", "reverse", "sort",
];
const OF_TUPLES: &[&str] = &["count", "index"];
const OF_DICTS: &[&str] = &[
    "clear",
    "copy",
    "fromkeys",
    "get",
    "items",
    "keys",
    "pop",
    "popitem",
    "setdefault",
    "update",
    "values",
];

/// Returns true for the name of a method of any type.
pub(super) fn is_method(name: &str) -> bool {
    [OF_STRINGS, OF_LISTS, OF_DICTS]
        .iter()
        .any(|names| names.contains(&name))
}

/// Returns true if values of a type have a method.
pub(super) fn has_method(kind: Kind, name: &str) -> bool {
    let names = match kind {
        Kind::Str => OF_STRINGS,
        Kind::List => OF_LISTS,
        Kind::Tuple | Kind::Range => OF_TUPLES,
        Kind::Dict => OF_DICTS,
        _ => return false,
    };
    names.contains(&name)
}
