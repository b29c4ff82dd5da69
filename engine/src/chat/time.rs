//! `strftime_now`: formats the current local time.

use super::args::invalid;
use minijinja::Error;
use std::ffi::{CString, c_char};
use std::mem::MaybeUninit;
use std::time::{Duration, SystemTime};

/// Maximum length of a formatted time in bytes.
const MAX_BYTES: usize = 16 << 10;

/// Formats a time in the local time zone, like `datetime.now().strftime(format)` in Python.
pub(super) fn strftime(format: &str, now: SystemTime) -> Result<String, Error> {
    let since = since_epoch(now);
    formatted(format, &broken_down(since, libc::localtime_r)?, since.subsec_micros())
}

fn since_epoch(now: SystemTime) -> Duration {
    now.duration_since(SystemTime::UNIX_EPOCH).unwrap_or(Duration::ZERO)
}

type Convert = unsafe extern "C" fn(*const libc::time_t, *mut libc::tm) -> *mut libc::tm;

/// Converts a time to year, month, day, and so on.
fn broken_down(since: Duration, convert: Convert) -> Result<libc::tm, Error> {
    let seconds = libc::time_t::try_from(since.as_secs()).map_err(|_| invalid("the time is out of range"))?;
    let mut time = MaybeUninit::uninit();
    // SAFETY: both pointers are valid during the call. If the result is not null, `time` was written.
    unsafe {
        if convert(&raw const seconds, time.as_mut_ptr()).is_null() {
            return Err(invalid("the time is out of range"));
        }
        Ok(time.assume_init())
    }
}

fn formatted(format: &str, time: &libc::tm, micros: u32) -> Result<String, Error> {
    // A mark at the end distinguishes an empty result from a buffer that is too small.
    let format = with_python_conversions(format, micros) + ".";
    let format = CString::new(format).map_err(|_| invalid("the format of a time contains a zero byte"))?;
    let mut buffer = vec![0u8; 256];
    while buffer.len() <= MAX_BYTES {
        // SAFETY: the buffer has the given length, `format` ends with a zero byte, and `time` is initialized.
        let n = unsafe {
            libc::strftime(
                buffer.as_mut_ptr().cast::<c_char>(),
                buffer.len(),
                format.as_ptr(),
                time,
            )
        };
        if n > 0 {
            buffer.truncate(n - 1);
            return String::from_utf8(buffer).map_err(|_| invalid("a formatted time is not UTF-8"));
        }
        buffer.resize(buffer.len() * 4, 0);
    }
    Err(invalid(format!("a formatted time exceeds {MAX_BYTES} bytes")))
}

/// Replaces the conversions that Python does itself: microseconds, and the time zone, which its `now` lacks.
fn with_python_conversions(format: &str, micros: u32) -> String {
    let mut out = String::with_capacity(format.len() + 8);
    let mut chars = format.chars();
    while let Some(c) = chars.next() {
        if c != '%' {
            out.push(c);
            continue;
        }
        match chars.next() {
            Some('z' | 'Z') => {}
            Some('f') => out.push_str(&format!("{micros:06}")),
            Some(c) => out.extend(['%', c]),
            // C leaves the meaning of a final percent sign open.
            None => out.push_str("%%"),
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn strftime_formats_known_dates() {
        let at = |format: &str, secs| {
            let since = Duration::from_secs(secs);
            formatted(format, &broken_down(since, libc::gmtime_r).unwrap(), 7).unwrap()
        };
        let full = "%A %d %B %Y %H:%M:%S %j";
        assert_eq!(at(full, 0), "Thursday 01 January 1970 00:00:00 001");
        assert_eq!(at(full, 951_782_399), "Monday 28 February 2000 23:59:59 059");
        assert_eq!(at(full, 951_782_400), "Tuesday 29 February 2000 00:00:00 060");
        assert_eq!(at(full, 1_735_689_599), "Tuesday 31 December 2024 23:59:59 366");
        assert_eq!(
            at(
                "%d %b %Y, %-d/%-m/%y %I %p|%e|%U|%x|%D|%X|%V|%u",
                1_722_470_400 + 46_800
            ),
            "01 Aug 2024, 1/8/24 01 PM| 1|30|08/01/24|08/01/24|13:00:00|31|4"
        );
        assert_eq!(
            at("%F %T.%f 100%%%z%Z", 1_000_000_000),
            "2001-09-09 01:46:40.000007 100%"
        );
        assert_eq!((at("", 0), at("%", 0)), (String::new(), "%".to_owned()));
        let time = broken_down(Duration::ZERO, libc::gmtime_r).unwrap();
        assert!(formatted("%900000d", &time, 0).is_err() && formatted("\0", &time, 0).is_err());
    }

    #[test]
    fn local_time_agrees_with_its_offset() {
        let since = since_epoch(SystemTime::now());
        let local = broken_down(since, libc::localtime_r).unwrap();
        let shifted = since.as_secs() as i64 + local.tm_gmtoff;
        let shifted = broken_down(Duration::from_secs(shifted as u64), libc::gmtime_r).unwrap();
        let all = "%F %T";
        assert_eq!(formatted(all, &local, 0).unwrap(), formatted(all, &shifted, 0).unwrap());
    }
}
