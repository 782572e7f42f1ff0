//! Parameters on their way to the device, and parameters that earlier work may still read. From
//! these follows which work has to wait for which.
//!
//! Parameters come on a stream of their own. Only these waits keep a product from reading old
//! parameters, and a copy from overwriting parameters that a product still reads. This is plain
//! bookkeeping of ranges of the flat parameter vector. It does not know a device. A large model has
//! thousands of shards, and each comes by itself. So the work for one takes the time of a search,
//! not of a pass over all.

use std::collections::BTreeMap;
use std::ops::Range;

use super::driver::DeliveryId;

/// The deliveries without a wait of the computation, and the parameters in use.
#[derive(Debug)]
pub struct Deliveries {
    /// The last delivery of each range, unless some work has certainly waited for it.
    coming: Ranges<DeliveryId>,
    /// The last delivery that some work has waited for, and so for all before it.
    waited: Option<DeliveryId>,
    /// Ranges that enqueued work reads or writes. That work is not known to be done.
    in_use: Ranges<()>,
}

impl Deliveries {
    /// For this many parameters, which are about to be zeroed.
    pub fn new(parameters: usize) -> Self {
        let mut in_use = Ranges::default();
        in_use.set(0..parameters, ());
        Self { coming: Ranges::default(), waited: None, in_use }
    }

    /// Takes note that the next work reads or writes `range`. Returns the delivery that it has to
    /// wait for. Deliveries come in their order, so that is the last of those that concern it.
    pub fn use_of(&mut self, range: Range<usize>) -> Option<DeliveryId> {
        let last = self.coming.take(&range).max().filter(|last| Some(*last) > self.waited);
        self.waited = self.waited.max(last);
        self.in_use.set(range, ());
        last
    }

    /// Whether the next delivery to `range` has to wait for all enqueued work. Every pass ends with
    /// a read, so in a run it has not.
    pub fn must_wait(&mut self, range: &Range<usize>) -> bool {
        let waits = self.in_use.overlapping(range).next().is_some();
        if waits {
            self.all_is_done();
        }
        waits
    }

    /// Takes note that a delivery is on its way to `range`, instead of the previous one there.
    pub fn on_its_way(&mut self, range: Range<usize>, delivered: DeliveryId) {
        self.coming.set(range, delivered);
    }

    /// Takes note that all enqueued work is done.
    pub fn all_is_done(&mut self) {
        self.in_use = Ranges::default();
    }
}

/// Ranges without overlaps, none of them empty. Each start has an end and a value.
#[derive(Debug)]
struct Ranges<T>(BTreeMap<usize, (usize, T)>);

impl<T> Default for Ranges<T> {
    fn default() -> Self {
        Self(BTreeMap::new())
    }
}

impl<T: Copy> Ranges<T> {
    /// The parts that overlap `range`, from the last to the first.
    fn overlapping(&self, range: &Range<usize>) -> impl Iterator<Item = (Range<usize>, T)> {
        let (start, before) = (range.start, if range.is_empty() { 0 } else { range.end });
        let parts =
            self.0.range(..before).rev().map(|(start, (end, known))| (*start..*end, *known));
        parts.take_while(move |(part, _)| part.end > start)
    }

    /// Removes whole those parts that overlap `range`, and returns their values.
    fn take(&mut self, range: &Range<usize>) -> impl Iterator<Item = T> {
        let parts: Vec<_> = self.overlapping(range).collect();
        for (part, _) in &parts {
            self.0.remove(&part.start);
        }
        parts.into_iter().map(|(_, known)| known)
    }

    /// Sets the value of `range`. The parts beside it keep theirs.
    fn set(&mut self, range: Range<usize>, known: T) {
        let parts: Vec<_> = self.overlapping(&range).collect();
        for (part, before) in parts {
            self.0.remove(&part.start);
            self.insert(part.start..range.start, before);
            self.insert(range.end..part.end, before);
        }
        self.insert(range, known);
    }

    /// Sets the value of a range that has none so far.
    fn insert(&mut self, range: Range<usize>, known: T) {
        if !range.is_empty() {
            self.0.insert(range.start, (range.end, known));
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;
    use proptest::prelude::*;

    fn deliver(deliveries: &mut Deliveries, range: Range<usize>, number: u64) -> bool {
        let waits = deliveries.must_wait(&range);
        deliveries.on_its_way(range, DeliveryId(number));
        waits
    }

    /// Where each part starts and ends.
    fn ends<T>(ranges: &Ranges<T>) -> Vec<(usize, usize)> {
        ranges.0.iter().map(|(start, (end, _))| (*start, *end)).collect()
    }

    #[test]
    fn what_is_computed_waits_for_what_it_reads_and_no_more() {
        let mut deliveries = Deliveries::new(100);
        for (number, start) in (1..).zip([0, 30, 60]) {
            deliver(&mut deliveries, start..start + 30, number);
        }
        assert_eq!(deliveries.use_of(90..100), None);
        assert_eq!(deliveries.use_of(29..31), Some(DeliveryId(2)), "and so for the first");
        assert_eq!(deliveries.use_of(0..60), None);
        assert_eq!(deliveries.use_of(0..61), Some(DeliveryId(3)));
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

    #[test]
    fn shards_that_come_again_and_again_are_remembered_once() {
        let mut deliveries = Deliveries::new(100);
        for number in 1..=100 {
            let start = (number as usize % 10) * 10;
            deliver(&mut deliveries, start..start + 10, number);
            deliveries.use_of(3..4);
        }
        assert!(deliveries.coming.0.len() <= 10);
        assert_eq!(deliveries.in_use.0.len(), 1);
        assert_eq!(deliveries.use_of(5..5), None, "nothing of nothing");
    }

    proptest! {
        #[test]
        fn each_parameter_is_waited_for_by_its_first_reader_and_remembered_once(
            steps in prop::collection::vec((any::<bool>(), 0usize..50, 1usize..20), 0..60),
        ) {
            const COUNT: usize = 70;
            let mut deliveries = Deliveries::new(COUNT);
            let (mut last, mut waited) = ([0u64; COUNT], 0);
            let mut bounds = BTreeSet::from([0, COUNT]);
            for (number, (delivers, start, len)) in (1u64..).zip(steps) {
                let range = start..start + len;
                bounds.extend([range.start, range.end]);
                if delivers {
                    deliver(&mut deliveries, range.clone(), number);
                    last[range].fill(number);
                } else {
                    let newest = last[range.clone()].iter().copied().max().unwrap_or(0);
                    let waits = deliveries.use_of(range).map(|DeliveryId(number)| number);
                    prop_assert_eq!(waits, (newest > waited).then_some(newest));
                    waited = waited.max(newest);
                }
                for parts in [ends(&deliveries.coming), ends(&deliveries.in_use)] {
                    prop_assert!(parts.len() < bounds.len());
                    prop_assert!(parts.iter().all(|(start, end)| start < end));
                    prop_assert!(parts.is_sorted_by(|one, next| one.1 <= next.0));
                }
            }
        }
    }
}
