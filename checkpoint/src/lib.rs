//! Checkpoints, and the directories and object stores that keep them.
//!
//! A checkpoint is the whole training state after one step: every parameter shard's f32 master
//! weights and optimizer moments, and the facts that a run needs to go on. It lies in a
//! [store](store::Store) as one safetensors file for each primary and a `manifest.json`, which is
//! written last. `docs/checkpoints.md` describes the layout for people and programs.
//!
//! | to | use |
//! |---|---|
//! | open a store by path or URL | [`store::Place`], [`store::open`], [`store::probe::probe`] |
//! | write a part, as a primary | [`part::writer::PartWriter`] |
//! | complete a checkpoint | [`manifest::Manifest::assemble`], [`store::Store::put_new`] |
//! | choose what to restore | [`choose::newest`], [`choose::exactly`] |
//! | know where a run of another cluster goes on | [`origin`] |
//! | restore shards | [`part::reader::CheckpointReader`] |
//! | keep metrics lines and events, or read them | [`history`] |
//! | delete what is too old | [`retention`] |
//! | be sure that no other cluster writes here | [`claims`] |
//! | hand weights to `transformers`, or take them | [`export`], [`import`] |
//!
//! This crate has no clock, no actor and no cluster. All of its verbs block.

mod bytes_of;
pub mod choose;
pub mod claims;
pub mod digest;
pub mod export;
pub mod head;
pub mod history;
pub mod import;
pub mod manifest;
pub mod names;
pub mod origin;
pub mod part;
pub mod retention;
pub mod slots;
pub mod store;
