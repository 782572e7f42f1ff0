//! Events to come, in the order of virtual time.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use everstep_transport::time::Time;

/// Events to come. Events of the same moment come out in the order in which they were put in.
#[derive(Debug)]
pub struct Queue<T> {
    order: BinaryHeap<Reverse<(Time, u64, u32)>>,
    /// The events, by slot. A slot is used again.
    slots: Vec<Option<T>>,
    free: Vec<u32>,
    count: u64,
}

impl<T> Queue<T> {
    pub fn new() -> Self {
        let (order, slots, free) = Default::default();
        Self { order, slots, free, count: 0 }
    }

    /// Schedules an event at `at`.
    pub fn put(&mut self, at: Time, what: T) {
        let slot = self.free.pop().unwrap_or_else(|| {
            self.slots.push(None);
            self.slots.len() as u32 - 1
        });
        self.slots[slot as usize] = Some(what);
        self.count += 1;
        self.order.push(Reverse((at, self.count, slot)));
    }

    /// Removes the next event, and returns it with its time.
    pub fn pop(&mut self) -> Option<(Time, T)> {
        while let Some(Reverse((at, _, slot))) = self.order.pop() {
            self.free.push(slot);
            if let Some(what) = self.slots[slot as usize].take() {
                return Some((at, what));
            }
        }
        None
    }

    /// When the next event is due.
    pub fn next_at(&mut self) -> Option<Time> {
        while let Some(Reverse((at, _, slot))) = self.order.peek().copied() {
            if self.slots[slot as usize].is_some() {
                return Some(at);
            }
            self.order.pop();
            self.free.push(slot);
        }
        None
    }

    /// Removes all events that `keep` rejects.
    pub fn retain(&mut self, keep: impl Fn(&T) -> bool) {
        for slot in &mut self.slots {
            if slot.as_ref().is_some_and(|what| !keep(what)) {
                *slot = None;
            }
        }
    }
}
