//! The tests of the step: each part by itself, one core among peers that the test plays, and
//! several cores from generation to generation.

mod catch_up;
mod cluster;
mod coordinators;
mod core;
mod generations;
mod gradients;
mod large;
mod links;
mod member;
mod plan;
#[cfg(feature = "planted")]
mod planted;
mod promises;
mod scaling;
mod solo;
mod support;
mod vote_tally;
mod writes;
