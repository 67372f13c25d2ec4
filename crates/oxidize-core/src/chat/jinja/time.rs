//! `strftime_now`: dates that some templates put into their system prompt. The caller passes the
//! time, in UTC, so that renderings are reproducible.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

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
const DAYS: [&str; 7] = [
    "Sunday",
    "Monday",
    "Tuesday",
    "Wednesday",
    "Thursday",
    "Friday",
    "Saturday",
];

/// Formats a time like C's `strftime` in the C locale. Unknown directives are kept.
pub fn strftime(time: SystemTime, format: &str) -> String {
    let civil = Civil::from(time);
    let mut out = String::new();
    let mut chars = format.chars();
    while let Some(c) = chars.next() {
        if c != '%' {
            out.push(c);
            continue;
        }
        let mut directive = chars.next();
        // glibc's `-` flag omits the padding.
        let padded = directive != Some('-');
        if !padded {
            directive = chars.next();
        }
        let number = |value: i64, width: usize| {
            if padded {
                format!("{value:0width$}")
            } else {
                value.to_string()
            }
        };
        match directive {
            Some('Y') => out += &civil.year.to_string(),
            Some('y') => out += &number(civil.year.rem_euclid(100), 2),
            Some('m') => out += &number(civil.month, 2),
            Some('d') => out += &number(civil.day, 2),
            Some('e') => {
                out += &if padded {
                    format!("{:2}", civil.day)
                } else {
                    civil.day.to_string()
                }
            }
            Some('H') => out += &number(civil.hour, 2),
            Some('I') => out += &number((civil.hour + 11) % 12 + 1, 2),
            Some('M') => out += &number(civil.minute, 2),
            Some('S') => out += &number(civil.second, 2),
            Some('j') => out += &number(civil.day_of_year, 3),
            Some('p') => out += if civil.hour < 12 { "AM" } else { "PM" },
            Some('B') => out += civil.month_name(),
            Some('b' | 'h') => out += civil.month_name().get(..3).unwrap_or(""),
            Some('A') => out += civil.weekday_name(),
            Some('a') => out += civil.weekday_name().get(..3).unwrap_or(""),
            Some('w') => out += &civil.weekday.to_string(),
            Some('F') => out += &format!("{}-{:02}-{:02}", civil.year, civil.month, civil.day),
            Some('T') => {
                out += &format!("{:02}:{:02}:{:02}", civil.hour, civil.minute, civil.second)
            }
            Some('Z') => out += "UTC",
            Some('z') => out += "+0000",
            Some('n') => out.push('\n'),
            Some('t') => out.push('\t'),
            Some('%') => out.push('%'),
            Some(other) => {
                out.push('%');
                out.push(other);
            }
            None => out.push('%'),
        }
    }
    out
}

/// Date and time in the Gregorian calendar.
struct Civil {
    year: i64,
    month: i64,
    day: i64,
    hour: i64,
    minute: i64,
    second: i64,
    /// Sunday is 0.
    weekday: i64,
    day_of_year: i64,
}

impl From<SystemTime> for Civil {
    fn from(time: SystemTime) -> Self {
        let seconds = match time.duration_since(UNIX_EPOCH) {
            Ok(after) => after.as_secs() as i64,
            Err(before) => -(before.duration() + Duration::from_nanos(999_999_999))
                .as_secs()
                .cast_signed(),
        };
        let days = seconds.div_euclid(86_400);
        let of_day = seconds.rem_euclid(86_400);
        let (year, month, day) = civil_from_days(days);
        Self {
            year,
            month,
            day,
            hour: of_day / 3600,
            minute: of_day / 60 % 60,
            second: of_day % 60,
            weekday: (days + 4).rem_euclid(7),
            day_of_year: days - days_from_civil(year, 1, 1) + 1,
        }
    }
}

impl Civil {
    fn month_name(&self) -> &'static str {
        MONTHS.get((self.month - 1) as usize).copied().unwrap_or("")
    }

    fn weekday_name(&self) -> &'static str {
        DAYS.get(self.weekday as usize).copied().unwrap_or("")
    }
}

/// Date of a day counted from 1970-01-01 (Hinnant, "chrono-compatible low-level date algorithms").
fn civil_from_days(days: i64) -> (i64, i64, i64) {
    let shifted = days + 719_468;
    let era = shifted.div_euclid(146_097);
    let of_era = shifted.rem_euclid(146_097);
    let year_of_era = (of_era - of_era / 1460 + of_era / 36_524 - of_era / 146_096) / 365;
    let of_year = of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let month_from_march = (5 * of_year + 2) / 153;
    let day = of_year - (153 * month_from_march + 2) / 5 + 1;
    let month = if month_from_march < 10 {
        month_from_march + 3
    } else {
        month_from_march - 9
    };
    (year_of_era + era * 400 + i64::from(month <= 2), month, day)
}

fn days_from_civil(year: i64, month: i64, day: i64) -> i64 {
    let year = year - i64::from(month <= 2);
    let era = year.div_euclid(400);
    let of_era = year.rem_euclid(400);
    let of_year = (153 * ((month + 9) % 12) + 2) / 5 + day - 1;
    era * 146_097 + of_era * 365 + of_era / 4 - of_era / 100 + of_year - 719_468
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn formats_known_times() {
        // 2024-02-29 13:05:09 UTC, a Thursday.
        let leap = UNIX_EPOCH + Duration::from_secs(1_709_211_909);
        assert_eq!(strftime(leap, "%Y-%m-%d %H:%M:%S"), "2024-02-29 13:05:09");
        assert_eq!(
            strftime(leap, "%d %b %Y, %A %B %-d %I%p day %j %y%%"),
            "29 Feb 2024, Thursday February 29 01PM day 060 24%"
        );
        assert_eq!(
            strftime(UNIX_EPOCH, "%a %e %F %T %q %"),
            "Thu  1 1970-01-01 00:00:00 %q %"
        );
        assert_eq!(
            strftime(UNIX_EPOCH - Duration::from_secs(1), "%F %T"),
            "1969-12-31 23:59:59"
        );
    }
}
