//! The order of additions in an embedding's gradient: the places of each token, in order.
//!
//! The host knows the tokens, so it sorts them. The device then gives every occurring token to one
//! block, which adds its rows one after the other.

/// The places of `n` tokens, sorted by token, and where each token begins among them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Segments {
    /// Places, those of one token together and ascending.
    pub order: Vec<u32>,
    /// Where in `order` the first place of each occurring token lies. At last its length.
    pub starts: Vec<u32>,
}

impl Segments {
    /// Sorts the places of `tokens`, in the memory of an earlier sort.
    pub fn sort(&mut self, tokens: &[u32]) {
        let token = |place: &u32| tokens[*place as usize];
        self.order.clear();
        self.order.extend(0..tokens.len() as u32);
        // Stable: the places of one token stay ascending.
        self.order.sort_by_key(token);
        self.starts.clear();
        let mut last = None;
        for (start, place) in self.order.iter().enumerate() {
            if last.replace(token(place)) != Some(token(place)) {
                self.starts.push(start as u32);
            }
        }
        self.starts.push(self.order.len() as u32);
    }

    /// The number of different tokens.
    pub fn count(&self) -> usize {
        self.starts.len() - 1
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn sorted(tokens: &[u32]) -> Segments {
        let mut segments = Segments { order: vec![9; 3], starts: vec![7] };
        segments.sort(tokens);
        segments
    }

    #[test]
    fn places_of_a_token_stay_in_their_order() {
        let Segments { order, starts } = sorted(&[5, 2, 5, 0, 2, 5]);
        assert_eq!(order, [3, 1, 4, 0, 2, 5]);
        assert_eq!(starts, [0, 1, 3, 6]);
        assert_eq!(sorted(&[]), Segments { order: vec![], starts: vec![0] });
    }

    proptest! {
        #[test]
        fn every_place_is_in_the_segment_of_its_token(
            tokens in prop::collection::vec(0u32..20, 0..200),
        ) {
            let segments = sorted(&tokens);
            let mut seen = vec![false; tokens.len()];
            let mut last = None;
            for bounds in segments.starts.windows(2) {
                let places = &segments.order[bounds[0] as usize..bounds[1] as usize];
                let token = tokens[places[0] as usize];
                prop_assert!(last < Some(token), "each token has one segment");
                last = Some(token);
                prop_assert!(places.is_sorted());
                for place in places {
                    prop_assert_eq!(tokens[*place as usize], token);
                    seen[*place as usize] = true;
                }
            }
            prop_assert!(seen.iter().all(|seen| *seen));
        }
    }
}
