//! Checkpoints on real stores: directories, and an object store in memory.

#[cfg(feature = "cloud")]
mod cloud;
mod crash;
mod damage;
mod directory;
mod fixture;
mod golden;
mod manifest;
mod restore;
#[path = "../../examples/suite/mod.rs"]
mod suite;
mod weights;
