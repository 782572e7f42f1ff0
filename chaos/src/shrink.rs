//! Makes a list that fails shorter, as long as it still fails: delta debugging (Zeller and
//! Hildebrandt, "Simplifying and isolating failure-inducing input", 2002), complements only.
//!
//! It does not know what the list holds, nor why it fails.

/// A shorter list for which `fails` holds, if it holds for `list`. The search calls `fails` at most
/// `attempts` times.
pub fn shrink<T: Clone>(
    mut list: Vec<T>,
    attempts: usize,
    mut fails: impl FnMut(&[T]) -> bool,
) -> Vec<T> {
    let mut left = attempts;
    // An empty list may fail too.
    let mut parts = 1;
    while !list.is_empty() {
        let length = list.len().div_ceil(parts);
        let mut shorter = None;
        for start in (0..list.len()).step_by(length) {
            if left == 0 {
                return list;
            }
            left -= 1;
            let end = (start + length).min(list.len());
            let rest = [&list[..start], &list[end..]].concat();
            if fails(&rest) {
                shorter = Some(rest);
                break;
            }
        }
        match shorter {
            Some(rest) => {
                list = rest;
                parts = (parts - 1).max(2);
            }
            None if length == 1 => return list,
            None => parts = (2 * parts).min(list.len()),
        }
    }
    list
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_matters_stays() {
        let fails = |list: &[u32]| [3, 17, 60].iter().all(|wanted| list.contains(wanted));
        assert_eq!(shrink((0..100).collect(), 1_000, fails), [3, 17, 60]);
        assert_eq!(shrink((0..100).collect::<Vec<_>>(), 1_000, |_| true), [0u32; 0]);
    }

    #[test]
    fn the_number_of_attempts_is_bounded() {
        let mut asked = 0;
        let fails = |list: &[u32]| {
            asked += 1;
            list.len() > 90
        };
        let shorter = shrink((0..100).collect(), 7, fails);
        assert!(asked <= 7 && shorter.len() > 90);
    }
}
