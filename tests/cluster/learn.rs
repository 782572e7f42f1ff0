//! What a run is for: the model learns.

use std::fs;

use serde_json::Value;

use crate::world::{World, show};

#[test]
fn the_default_run_learns_more_than_a_bigram_model() {
    let world = World::new();
    let file = world.path("report.json");
    let ended = world.start(&["train", "--report", show(&file)]).end();
    assert_eq!(ended.code, Some(0), "{ended:?}");
    let report: Value = serde_json::from_str(&fs::read_to_string(file).unwrap()).unwrap();
    let loss = |key: &str| report["loss"][key].as_f64().expect(key);
    let uniform = 256_f64.ln();
    assert!((loss("first") - uniform).abs() < 0.3, "it begins with no opinion: {}", loss("first"));
    let (validation, bigram) = (loss("validation"), loss("bigram"));
    assert!(validation < bigram - 0.1, "{validation} nats, a bigram model {bigram}");
}
