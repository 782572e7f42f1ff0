//! Runs what every store must do on a real one: `cargo run -p everstep-checkpoint --example
//! store_suite -- s3://BUCKET/FOLDER`. The folder must be empty. The environment says how to reach
//! the store, as for a run.

mod suite;

use std::process::ExitCode;

use everstep_checkpoint::store::probe::probe;
use everstep_checkpoint::store::{Environment, Place, Store, open};

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let (url, is_probe) = match arguments.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        [url] => (url, false),
        ["--probe", url] => (url, true),
        _ => {
            eprintln!("usage: store_suite [--probe] PATH or URL");
            return ExitCode::from(2);
        }
    };
    let opened = || -> Result<Box<dyn Store>, _> {
        open(&url.parse::<Place>()?, &Environment::of_process())
    };
    if let Err(error) = opened().and_then(|store| if is_probe { probe(&*store) } else { Ok(()) }) {
        eprintln!("{error}");
        return ExitCode::FAILURE;
    }
    if !is_probe {
        suite::run(&|| opened().expect("it was opened before"), &|step| println!("  {step}"));
    }
    println!("all right: {url}");
    ExitCode::SUCCESS
}
