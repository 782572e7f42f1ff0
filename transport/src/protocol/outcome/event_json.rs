//! How people and programs see an event: as a line of JSON.

use time::OffsetDateTime;
use time::format_description::well_known::Rfc3339;

use super::{Event, EventKind, Shard};

/// Adds the time in words for people to an event's own fields, and names its parameter shards.
impl serde::Serialize for Event {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        #[derive(serde::Serialize)]
        struct EventJson<'a> {
            number: u64,
            unix_ms: u64,
            #[serde(skip_serializing_if = "Option::is_none")]
            time: Option<String>,
            #[serde(flatten)]
            kind: &'a EventKind,
            #[serde(skip_serializing_if = "Option::is_none")]
            under_protected_shards: Option<Vec<ShardSpan>>,
        }

        #[derive(serde::Serialize)]
        struct ShardSpan {
            first: Shard,
            count: u32,
        }

        let Self { number, unix_ms, kind } = self;
        let spans = match kind {
            EventKind::Generation { under_protected, .. } => {
                let span = |&(first, count)| ShardSpan { first, count };
                Some(under_protected.iter().map(span).collect())
            }
            _ => None,
        };
        let (number, unix_ms, time) = (*number, *unix_ms, utc(*unix_ms));
        EventJson { number, unix_ms, time, kind, under_protected_shards: spans }
            .serialize(serializer)
    }
}

/// A wall clock in UTC, as RFC 3339 writes it, always with three digits of milliseconds. `None` for
/// a year outside the range of RFC 3339.
pub fn utc(unix_ms: u64) -> Option<String> {
    let seconds = i64::try_from(unix_ms / 1_000).ok()?;
    let second = OffsetDateTime::from_unix_timestamp(seconds).ok()?.format(&Rfc3339).ok()?;
    Some(format!("{}.{:03}Z", second.trim_end_matches('Z'), unix_ms % 1_000))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::protocol::{Cause, Generation, Step, WorkerId};

    #[test]
    fn an_event_tells_its_time_and_its_shards_for_people_too() {
        assert_eq!(utc(951_782_400_020).as_deref(), Some("2000-02-29T00:00:00.020Z"));
        assert_eq!(utc(951_782_400_000).as_deref(), Some("2000-02-29T00:00:00.000Z"));
        assert_eq!(utc(u64::MAX), None);
        let kind = EventKind::Generation {
            generation: Generation(1),
            cause: Cause::Start,
            workers: vec![WorkerId(4)],
            at_step: Step(0),
            redone: false,
            waiting: false,
            under_protected: vec![(Shard(3), 40)],
        };
        let told = serde_json::to_value(Event { number: 7, unix_ms: 5, kind }).expect("plain data");
        assert_eq!(
            (&told["number"], &told["unix_ms"], &told["event"]),
            (&7.into(), &5.into(), &"generation".into())
        );
        assert_eq!(told["time"], "1970-01-01T00:00:00.005Z");
        assert_eq!(told["under_protected"], serde_json::json!([[3, 40]]));
        assert_eq!(
            told["under_protected_shards"],
            serde_json::json!([{ "first": 3, "count": 40 }])
        );
        let left = Event { number: 8, unix_ms: 5, kind: EventKind::NoStore };
        let left = serde_json::to_value(left).expect("plain data");
        assert_eq!(left.get("under_protected_shards"), None);
    }
}
