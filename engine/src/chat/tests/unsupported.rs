//! Parts of Jinja2 that are errors here.

use super::{check_eval, eval};

/// Values that the engine cannot represent are errors.
#[test]
fn unsupported_parts_of_jinja_are_errors() {
    let long = "('9' * 50)";
    for (source, part) in [
        (&format!("{{{{ {long} | int }}}}")[..], "exceeds 128 bits"),
        ("{{ ('f' * 40) | int(0, 16) }}", "exceeds 128 bits"),
        ("{{ 1e40 | int }}", "exceeds 128 bits"),
        ("{{ '%d' % 1e40 }}", "exceeds 128 bits"),
        ("{{ 2 ** 127 }}", "exceeds 128 bits"),
        (
            "{{ (-170141183460469231731687303715884105727 - 1) // -1 }}",
            "exceeds 128 bits",
        ),
        (
            "{{ 150000000000000000000000000000000000000 | round(-38) }}",
            "exceeds 128 bits",
        ),
        ("{{ 99999999999999999999999999999999999999999999 }}", "too large"),
        ("{{ +1 }}", "unexpected `+`"),
        ("{{ lipsum() }}", "lipsum is unknown"),
        ("{{ 'https://a.b' | urlize }}", "urlize is unknown"),
        ("{{ 'a'.encode() }}", "no method named encode"),
        ("{% macro m(a) %}{{ varargs }}{% endmacro %}{{ m(1) }}", "varargs"),
        ("{% macro m(a) %}{{ kwargs.b }}{% endmacro %}{{ m(1) }}", "kwargs"),
    ] {
        let error = eval(source).unwrap_err().to_string();
        assert!(error.contains(part), "{source}: {error}");
    }
    check_eval(&[
        ("{% macro m(kwargs) %}{{ kwargs }}{% endmacro %}{{ m(1) }}", "1"),
        ("{% set varargs = 2 %}{{ varargs }}", "2"),
        ("{{ '%d' % 1e38 }}", "99999999999999997748809823456034029568"),
    ]);
}
