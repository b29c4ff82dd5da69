//! `strftime_now`: formats the current date in UTC.

use std::fmt::Write;
use std::time::{Duration, SystemTime};

const DAYS: [&str; 7] = [
    "Sunday",
    "Monday",
    "Tuesday",
    "Wednesday",
    "Thursday",
    "Friday",
    "Saturday",
];
const MONTHS: [&str; 12] = [
    "January",
    "February",
    "March",
    "April",
    "May",
    "June",
    "July",
    "August",
    "September",
    "October",
    "November",
    "December",
];

/// Formats a time with the conversions of Python's `strftime` for parts of date and time. Other conversions
/// are copied unchanged.
pub(super) fn strftime(format: &str, now: SystemTime) -> String {
    let since = now
        .duration_since(SystemTime::UNIX_EPOCH)
        .unwrap_or(Duration::ZERO)
        .as_secs();
    let (days, second) = ((since / 86_400) as i64, since % 86_400);
    let (year, month, day) = civil(days);
    let (hour, minute, second) = (second / 3600, second / 60 % 60, second % 60);
    let week_day = DAYS[(days + 4).rem_euclid(7) as usize];
    let month_name = MONTHS[month as usize - 1];
    let year_day = days - days_before(year) + 1;
    let half = if hour < 12 { "AM" } else { "PM" };
    let hour_12 = (hour + 11) % 12 + 1;

    let mut out = String::with_capacity(format.len() + 16);
    let mut chars = format.chars();
    while let Some(c) = chars.next() {
        if c != '%' {
            out.push(c);
            continue;
        }
        // `%-d` omits the zero padding.
        let mut conversion = chars.next();
        let padded = conversion != Some('-');
        if !padded {
            conversion = chars.next();
        }
        let mut number = |n: u64, width: usize| {
            let width = if padded { width } else { 0 };
            // Writing to a string cannot fail.
            let _ = write!(out, "{n:0width$}");
        };
        match conversion {
            Some('Y') => number(year.unsigned_abs(), 4),
            Some('y') => number(year.unsigned_abs() % 100, 2),
            Some('m') => number(month, 2),
            Some('d') => number(day, 2),
            Some('H') => number(hour, 2),
            Some('I') => number(hour_12, 2),
            Some('M') => number(minute, 2),
            Some('S') => number(second, 2),
            Some('j') => number(year_day.unsigned_abs(), 3),
            Some('B') => out.push_str(month_name),
            Some('b' | 'h') => out.push_str(&month_name[..3]),
            Some('A') => out.push_str(week_day),
            Some('a') => out.push_str(&week_day[..3]),
            Some('p') => out.push_str(half),
            Some('Z') => out.push_str("UTC"),
            Some('z') => out.push_str("+0000"),
            Some('F') => out.push_str(&format!("{year:04}-{month:02}-{day:02}")),
            Some('T') => out.push_str(&format!("{hour:02}:{minute:02}:{second:02}")),
            Some('%') => out.push('%'),
            other => {
                out.push('%');
                out.extend(if padded { None } else { Some('-') }.into_iter().chain(other));
            }
        }
    }
    out
}

/// Returns the days from 1970-01-01 to the first day of a Gregorian year.
fn days_before(year: i64) -> i64 {
    let y = year - 1;
    y * 365 + y.div_euclid(4) - y.div_euclid(100) + y.div_euclid(400) - 719_162
}

/// Converts days since 1970-01-01 to year, month, and day; months and days start at 1.
fn civil(days: i64) -> (i64, u64, u64) {
    // 400 years have 146097 days, so the estimate is at most one year off.
    let mut year = 1970 + days * 400 / 146_097;
    while days_before(year) > days {
        year -= 1;
    }
    while days_before(year + 1) <= days {
        year += 1;
    }
    let leap = days_before(year + 1) - days_before(year) == 366;
    let lengths = [31, if leap { 29 } else { 28 }, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31];
    let mut left = (days - days_before(year)) as u64;
    let mut month = 1;
    for length in lengths {
        if left < length {
            break;
        }
        left -= length;
        month += 1;
    }
    (year, month, left + 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn strftime_formats_known_dates() {
        let at = |secs| SystemTime::UNIX_EPOCH + Duration::from_secs(secs);
        let full = "%A %d %B %Y %H:%M:%S %j";
        assert_eq!(strftime(full, at(0)), "Thursday 01 January 1970 00:00:00 001");
        assert_eq!(strftime(full, at(951_782_399)), "Monday 28 February 2000 23:59:59 059");
        assert_eq!(strftime(full, at(951_782_400)), "Tuesday 29 February 2000 00:00:00 060");
        assert_eq!(
            strftime(full, at(1_735_689_599)),
            "Tuesday 31 December 2024 23:59:59 366"
        );
        assert_eq!(
            strftime("%d %b %Y, %-d/%-m/%y %I %p", at(1_722_470_400 + 46_800)),
            "01 Aug 2024, 1/8/24 01 PM"
        );
        assert_eq!(
            strftime("%F %T 100%% %q %-", at(1_000_000_000)),
            "2001-09-09 01:46:40 100% %q %-"
        );
    }

    #[test]
    fn civil_inverts_days_before() {
        for year in [1970, 1999, 2000, 2100, 2400] {
            assert_eq!(civil(days_before(year)), (year, 1, 1));
            assert_eq!(civil(days_before(year) - 1), (year - 1, 12, 31));
        }
    }
}
