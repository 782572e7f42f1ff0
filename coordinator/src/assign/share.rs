//! Evens out shards over members, and moves as few as that allows.
//!
//! A shard moves only if its holder is gone, or holds more than its share. So after a loss only
//! orphans move (a balanced survivor never holds more than its new share), and after a join only
//! what the newcomers need.

/// The new holder of every shard, by rank. Each of `members` gets the same number within one.
///
/// `holders[shard]` is the rank of the current holder, if that is a member. `preferred(shard)`
/// lists the ranks that should rather get a shard that moves, best first. They do if their shares
/// have room.
pub(super) fn even_out<'a>(
    holders: &[Option<usize>],
    members: usize,
    preferred: impl Fn(usize) -> &'a [usize],
) -> Vec<usize> {
    let mut room = shares(holders, members);
    let mut assigned = vec![None; holders.len()];
    for (shard, holder) in holders.iter().enumerate() {
        assigned[shard] = holder.filter(|&rank| take(&mut room, rank));
    }
    for (shard, slot) in assigned.iter_mut().enumerate() {
        if slot.is_none() {
            let mut wanted = preferred(shard).iter().copied();
            *slot = wanted.find(|&rank| take(&mut room, rank));
        }
    }
    // Gives the rest in rank order, so that a member's shards are contiguous where they can be.
    let mut free = (0..members).flat_map(|rank| std::iter::repeat_n(rank, room[rank]));
    assigned
        .into_iter()
        .map(|slot| slot.or_else(|| free.next()).expect("shares add up to the number of shards"))
        .collect()
}

/// How many shards each member is to have. One more goes to the members that hold most.
fn shares(holders: &[Option<usize>], members: usize) -> Vec<usize> {
    let mut held = vec![0; members];
    for &rank in holders.iter().flatten() {
        held[rank] += 1;
    }
    let mut by_holding: Vec<_> = (0..members).collect();
    by_holding.sort_by_key(|&rank| std::cmp::Reverse(held[rank]));
    let mut shares = vec![holders.len() / members; members];
    for &rank in &by_holding[..holders.len() % members] {
        shares[rank] += 1;
    }
    shares
}

fn take(room: &mut [usize], rank: usize) -> bool {
    let fits = room[rank] > 0;
    room[rank] -= usize::from(fits);
    fits
}
