//! How many bytes of states may be under way at once: about as many as arrive in two seconds.
//!
//! Intuition: an owner answers at once or after a while, and a link is fast or slow. The bytes
//! under way must cover both, and no more, since they take up an owner's memory. So the window
//! follows the bytes that arrived lately, and never the number of steps that went by meanwhile.

#![deny(clippy::disallowed_types, clippy::disallowed_methods)]

use std::time::Duration;

use everstep_transport::time::Time;

/// The window before any measurement, and the smallest window, bytes.
pub const MIN_BYTES: usize = 64 << 20;
/// The largest window, bytes: two seconds of a link of 2 Gbit/s, in the memory of the owners.
pub const MAX_BYTES: usize = 512 << 20;
/// As many bytes may be under way as arrive in so long.
const WINDOW_SPAN: Duration = Duration::from_secs(2);
/// The window counts arriving bytes over at least so long.
const WINDOW_MEASURE_INTERVAL: Duration = Duration::from_secs(1);

/// The window of one worker that catches up.
#[derive(Debug)]
pub struct Window {
    bytes: usize,
    /// Bytes that have arrived since the last look.
    arrived: usize,
    since: Option<Time>,
}

impl Default for Window {
    fn default() -> Self {
        Self { bytes: MIN_BYTES, arrived: 0, since: None }
    }
}

impl Window {
    /// The bytes that may be under way. One shard's state may be larger.
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// So many bytes of states have arrived.
    pub fn take(&mut self, bytes: usize) {
        self.arrived += bytes;
    }

    /// Time passes. While nothing arrives the window stays: the worker measures nothing of the link
    /// then.
    pub fn tick(&mut self, now: Time) {
        let since = *self.since.get_or_insert(now);
        let span = now.since(since);
        if span < WINDOW_MEASURE_INTERVAL {
            return;
        }
        if self.arrived > 0 {
            let wanted = self.arrived as f64 * WINDOW_SPAN.as_secs_f64() / span.as_secs_f64();
            self.bytes = (wanted as usize).clamp(MIN_BYTES, MAX_BYTES);
        }
        (self.arrived, self.since) = (0, Some(now));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Bytes arrive, one entry for each second. Returns the window after the last.
    fn after(arrivals: &[usize]) -> usize {
        let mut window = Window::default();
        let mut now = Time(1);
        window.tick(now);
        for bytes in arrivals {
            window.take(*bytes);
            now = now + Duration::from_secs(1);
            window.tick(now);
        }
        window.bytes()
    }

    #[test]
    fn it_is_what_arrives_in_two_seconds_within_its_bounds() {
        assert_eq!(after(&[]), MIN_BYTES);
        assert_eq!(after(&[125 << 20]), 250 << 20);
        assert_eq!(after(&[1 << 20]), MIN_BYTES);
        assert_eq!(after(&[1 << 30]), MAX_BYTES);
        assert_eq!(after(&[125 << 20, 0, 0]), 250 << 20, "silence says nothing of a link");
    }
}
