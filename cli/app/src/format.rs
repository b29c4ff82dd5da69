//! Human-readable formatting of sizes, counts, and times.

/// Formats bytes with a binary unit: `1.50 MiB`.
pub fn bytes(n: usize) -> String {
    scaled(n as f64, 1024.0, &[" B", " KiB", " MiB", " GiB", " TiB"])
}

/// Formats bytes in MiB, for columns that are compared or added: `1050.43 MiB`. Sizes from 1 TiB use a larger
/// unit.
pub fn mib(n: usize) -> String {
    const TIB: usize = 1 << 40;
    match n {
        TIB.. => bytes(n),
        _ => format!("{:.2} MiB", n as f64 / f64::from(1 << 20)),
    }
}

/// Formats a count with a decimal unit: `134.52 M`.
pub fn count(n: usize) -> String {
    scaled(n as f64, 1000.0, &["", " K", " M", " B", " T"])
}

/// Divides by `step` until the number is below it. Numbers with the first unit have no decimals.
fn scaled(mut n: f64, step: f64, units: &[&str]) -> String {
    let mut unit = 0;
    while n >= step && unit + 1 < units.len() {
        n /= step;
        unit += 1;
    }
    if unit == 0 {
        format!("{n:.0}{}", units[0])
    } else {
        format!("{n:.2}{}", units[unit])
    }
}

/// Formats an age: `3 days ago`.
pub fn ago(seconds: u64) -> String {
    let (n, unit) = match seconds {
        0..60 => return "just now".to_owned(),
        60..3600 => (seconds / 60, "minute"),
        3600..86_400 => (seconds / 3600, "hour"),
        _ => (seconds / 86_400, "day"),
    };
    format!("{} ago", plural(n as usize, unit))
}

/// Formats a shape, innermost dimension first: `576 x 49152`.
pub fn shape(dims: &[usize]) -> String {
    dims.iter().map(ToString::to_string).collect::<Vec<_>>().join(" x ")
}

/// Formats a count with its noun: `1 tensor`, `2 tensors`.
pub fn plural(n: usize, what: &str) -> String {
    format!("{n} {what}{}", if n == 1 { "" } else { "s" })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_have_units() {
        assert_eq!(bytes(0), "0 B");
        assert_eq!(bytes(1023), "1023 B");
        assert_eq!(bytes(1536 * 1024), "1.50 MiB");
        assert_eq!(bytes(usize::MAX), "16777216.00 TiB");
        assert_eq!((mib(3 << 19), mib(41 << 40)), ("1.50 MiB".into(), "41.00 TiB".into()));
        assert_eq!(count(134_515_008), "134.52 M");
        assert_eq!(
            (ago(59), ago(60), ago(90_000)),
            ("just now".into(), "1 minute ago".into(), "1 day ago".into())
        );
        assert_eq!((plural(1, "key"), plural(0, "key")), ("1 key".into(), "0 keys".into()));
    }
}
