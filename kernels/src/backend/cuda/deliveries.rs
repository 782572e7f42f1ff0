//! Which parameters are on their way to the device, and which may still be read by what was
//! enqueued before: who has to wait for whom.
//!
//! Parameters come on a stream of their own, so nothing but these waits keeps a product from the
//! old ones, or a copy from those that a product still reads. Plain bookkeeping of ranges of the
//! flat parameter vector; it does not know a device.

use std::ops::Range;

use super::driver::Delivered;

/// The deliveries that nothing computed has waited for, and the parameters in use.
#[derive(Debug)]
pub struct Deliveries {
    /// The last delivery of each range, without overlaps.
    coming: Vec<(Range<usize>, Delivered)>,
    /// What is read or written by work of which nobody knows that it is done.
    in_use: Vec<Range<usize>>,
}

impl Deliveries {
    /// Of so many parameters, which are about to be zeroed.
    pub fn new(parameters: usize) -> Self {
        let all = 0..parameters;
        Self { coming: Vec::new(), in_use: vec![all] }
    }

    /// Something that reads or writes `range` is about to be enqueued: the delivery that it has to
    /// wait for. Deliveries come in their order, so that is the last of those that concern it.
    pub fn use_of(&mut self, range: Range<usize>) -> Option<Delivered> {
        let concerns = |(part, _): &&(Range<usize>, Delivered)| overlap(part, &range);
        let last = self.coming.iter().filter(concerns).map(|(_, delivered)| *delivered).max();
        self.coming.retain(|(_, delivered)| Some(*delivered) > last);
        if !self.in_use.contains(&range) {
            self.in_use.push(range);
        }
        last
    }

    /// Something is about to be delivered to `range`: whether it has to wait for all that was
    /// enqueued. Every pass ends with a read, so that in a run it has not.
    pub fn must_wait(&mut self, range: &Range<usize>) -> bool {
        let waits = self.in_use.iter().any(|part| overlap(part, range));
        if waits {
            self.in_use.clear();
        }
        waits
    }

    /// Something is on its way to `range`, instead of what was on its way there before.
    pub fn on_its_way(&mut self, range: Range<usize>, delivered: Delivered) {
        let beside = |(part, delivered): (Range<usize>, Delivered)| {
            let before = part.start..part.end.min(range.start);
            let after = part.start.max(range.end)..part.end;
            [before, after].map(|part| (part, delivered))
        };
        let coming = std::mem::take(&mut self.coming).into_iter().flat_map(beside);
        self.coming = coming.filter(|(part, _)| !part.is_empty()).collect();
        self.coming.push((range, delivered));
    }

    /// All that was enqueued is done.
    pub fn all_is_done(&mut self) {
        self.in_use.clear();
    }
}

fn overlap(one: &Range<usize>, other: &Range<usize>) -> bool {
    one.start.max(other.start) < one.end.min(other.end)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn deliver(deliveries: &mut Deliveries, range: Range<usize>, number: u64) -> bool {
        let waits = deliveries.must_wait(&range);
        deliveries.on_its_way(range, Delivered(number));
        waits
    }

    #[test]
    fn what_is_computed_waits_for_what_it_reads_and_no_more() {
        let mut deliveries = Deliveries::new(100);
        for (number, start) in (1..).zip([0, 30, 60]) {
            deliver(&mut deliveries, start..start + 30, number);
        }
        assert_eq!(deliveries.use_of(90..100), None);
        assert_eq!(deliveries.use_of(29..31), Some(Delivered(2)), "and so for the first");
        assert_eq!(deliveries.use_of(0..60), None);
        assert_eq!(deliveries.use_of(0..61), Some(Delivered(3)));
        assert_eq!(deliveries.use_of(0..100), None);
    }

    #[test]
    fn a_delivery_waits_for_those_who_may_still_read_what_was_there() {
        let mut deliveries = Deliveries::new(100);
        assert!(deliver(&mut deliveries, 0..10, 1), "for the zeros");
        assert!(!deliver(&mut deliveries, 50..60, 2), "all before it was waited for");
        deliveries.use_of(0..5);
        assert!(!deliver(&mut deliveries, 5..10, 3));
        assert!(deliver(&mut deliveries, 4..6, 4));
        deliveries.use_of(0..5);
        deliveries.all_is_done();
        assert!(!deliver(&mut deliveries, 0..5, 5));
    }

    proptest! {
        #[test]
        fn each_parameter_is_waited_for_by_its_first_reader_and_remembered_once(
            steps in prop::collection::vec((any::<bool>(), 0usize..50, 1usize..20), 0..60),
        ) {
            const COUNT: usize = 70;
            let mut deliveries = Deliveries::new(COUNT);
            let (mut last, mut waited) = ([0u64; COUNT], 0);
            for (number, (delivers, start, len)) in (1u64..).zip(steps) {
                let range = start..start + len;
                if delivers {
                    deliver(&mut deliveries, range.clone(), number);
                    last[range].fill(number);
                } else {
                    let newest = last[range.clone()].iter().copied().max().unwrap_or(0);
                    let waits = deliveries.use_of(range).map(|Delivered(number)| number);
                    prop_assert_eq!(waits, (newest > waited).then_some(newest));
                    waited = waited.max(newest);
                }
                let parts: usize = deliveries.coming.iter().map(|(part, _)| part.len()).sum();
                prop_assert!(parts <= COUNT);
            }
        }
    }
}
