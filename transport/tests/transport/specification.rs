//! The bytes of a run's specification as JSON: stores and coordinators know a run and a request by
//! digests of these bytes.

use everstep_transport::protocol::RunSpec;

/// A specification that states nothing that it may leave out.
const SHORT: &str = concat!(
    r#"{"name":"example","seed":1,"steps":10,"min_workers":1,"start_workers":2,"#,
    r#""model":{"kind":"gpt","layers":1,"heads":2,"width":8,"context":4,"vocabulary":256,"#,
    r#""precision":"f32","recompute":false},"#,
    r#""data":{"kind":"text","path":"/text","validation":0.05},"#,
    r#""batch":{"data_shards":4,"micro_batch":2,"accumulate":1},"#,
    r#""optimizer":{"kind":"adamw","learning_rate":0.001,"warmup_steps":2,"schedule":"cosine","#,
    r#""floor":0.1,"weight_decay":0.1,"clip_norm":1.0},"#,
    r#""all_gather":"f32","rounding":"nearest","copies":2,"hang_after_ms":10000}"#,
);

/// A specification that states all that one of the first format could state.
const LONG: &str = concat!(
    r#"{"name":"example","seed":1,"steps":10,"min_workers":1,"start_workers":2,"#,
    r#""model":{"kind":"mine","layers":1,"heads":2,"width":8,"context":4,"vocabulary":512,"#,
    r#""precision":"fp16","recompute":true,"init":{"path":"s3://bucket/weights","digest":"00"},"#,
    r#""options":{"flag":true,"number":0.5}},"#,
    r#""data":{"kind":"tokens","path":"/tokens","validation":0.05,"dtype":"u32"},"#,
    r#""batch":{"data_shards":4,"micro_batch":2,"accumulate":1},"#,
    r#""optimizer":{"kind":"adamw","learning_rate":0.001,"warmup_steps":2,"schedule":"cosine","#,
    r#""floor":0.1,"weight_decay":0.1,"clip_norm":null,"betas":[0.9,0.95],"epsilon":1e-8,"#,
    r#""momentum":0.9,"options":{"power":0.25}},"#,
    r#""all_gather":"bf16","rounding":"stochastic","copies":2,"give_up_after_ms":600000,"#,
    r#""hang_after_ms":10000,"checkpoint":{"path":"/store","every":5,"keep":3,"keep_every":100,"#,
    r#""on_failure":"pause"}}"#,
);

/// A key that comes later is left out where it has its default, or every older store is that of
/// another run, and coordinators of two versions differ in their states.
#[test]
fn i23_a_specification_of_an_older_program_keeps_its_bytes() {
    for text in [SHORT, LONG] {
        let run: RunSpec = serde_json::from_str(text).expect("a specification");
        assert_eq!(serde_json::to_string(&run).expect("plain data"), text);
    }
}
