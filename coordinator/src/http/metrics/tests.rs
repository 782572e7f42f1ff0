//! A golden text and a checker of the format show that Prometheus can read the text.

use std::collections::{BTreeMap, BTreeSet};

use everstep_transport::protocol::MetricsLine;

use super::*;
use crate::http::tests::overview;

#[test]
fn the_figures_of_a_run_are_these() {
    assert_eq!(text(&overview()), include_str!("golden.txt"));
}

#[test]
fn the_text_keeps_the_rules_whatever_the_figures_are() {
    assert_eq!(problems(&text(&overview())), Vec::<String>::new());
    let mut odd = overview();
    let (loss, grad_norm) = (f64::NAN, f64::NEG_INFINITY);
    odd.cluster.line = Some(MetricsLine { loss, grad_norm, ..MetricsLine::default() });
    odd.cluster.ignored = u64::MAX;
    odd.runs[0].name = "a\"b\\c\nd".into();
    assert_eq!(problems(&text(&odd)), Vec::<String>::new());
    assert!(text(&odd).contains("everstep_gradient_norm -Inf\n"));
    let info = r#"everstep_run_info{run="a\"b\\c\nd",id="7",state="training"} 1"#;
    assert!(text(&odd).lines().any(|line| line == info));
    odd.cluster.line = None;
    odd.cluster.run = None;
    assert_eq!(problems(&text(&odd)), Vec::<String>::new());
    assert!(!text(&odd).contains("everstep_run_info"), "there is no run to name");
}

#[test]
fn the_figures_of_the_process_keep_the_rules_and_have_the_usual_names() {
    let figures = ProcessFigures {
        cpu_seconds: 1.25,
        start_seconds: 1_700_000_000.5,
        resident_bytes: 1 << 20,
        virtual_bytes: 1 << 30,
        open_files: 9,
    };
    let page = process_text(&figures);
    assert_eq!(problems(&(text(&overview()) + &page)), Vec::<String>::new());
    let samples: Vec<&str> = page.lines().filter(|line| !line.starts_with('#')).collect();
    let expected = [
        "process_cpu_seconds_total 1.25",
        "process_start_time_seconds 1700000000.5",
        "process_resident_memory_bytes 1048576",
        "process_virtual_memory_bytes 1073741824",
        "process_open_fds 9",
    ];
    assert_eq!(samples, expected);
}

#[test]
fn a_sum_over_all_coordinators_counts_everything_once() {
    let mut follows = overview();
    follows.cluster.leads = None;
    let page = text(&follows);
    let run_metrics = [
        "everstep_tokens_total",
        "everstep_steps_committed_total",
        "everstep_losses_total",
        "everstep_stall_seconds",
    ];
    assert!(!run_metrics.iter().any(|name| page.contains(name)), "{page}");
    assert!(page.contains("everstep_log_entries_applied_total"), "each has its own log");
    assert!(run_metrics.iter().all(|name| text(&overview()).contains(name)));
}

#[test]
fn only_device_metrics_have_a_worker_label() {
    let text = text(&overview());
    let named = |line: &str| line.contains("worker=\"");
    let labels = text.lines().filter(|line| !named(line));
    let labels = labels.filter_map(|line| Some(line.split_once('{')?.1.split_once('=')?.0));
    let labels: BTreeSet<&str> = labels.collect();
    let known = ["by", "cause", "le", "role", "run", "state", "version", "what"];
    assert_eq!(labels, BTreeSet::from(known));
    let families = text.lines().filter(|line| named(line)).filter_map(|line| line.split_once('{'));
    for (family, _) in families {
        let of_device = family.starts_with("everstep_gpu_");
        assert!(of_device || family == "everstep_worker_device_info", "{family}");
    }
}

#[test]
fn the_checker_finds_what_breaks_a_rule() {
    let head = "# HELP a_total It is.\n# TYPE a_total counter\n";
    for broken in [
        "a_total 1\n",
        "# HELP a_total It is.\na_total 1\n",
        "# HELP a It is.\n# TYPE a counter\na 1\n",
        "# HELP a It is.\n# TYPE a sort\na 1\n",
        &format!("{head}a_total 1"),
        &format!("{head}a_total one\n"),
        &format!("{head}b_total 1\n"),
        &format!("{head}a_total 1\na_total 2\n"),
        &format!("{head}a_total 1\n{head}a_total{{x=\"y\"}} 1\n"),
        &format!("{head}a_total{{x=y}} 1\n"),
        &format!("{head}a_total{{x=\"y\"z\"}} 1\n"),
        &format!("{head}a_total{{x=\"y\\z\"}} 1\n"),
        "# HELP h It is.\n# TYPE h histogram\nh_bucket{le=\"1\"} 2\nh_bucket{le=\"+Inf\"} 1\n\
         h_sum 1\nh_count 1\n",
        "# HELP h It is.\n# TYPE h histogram\nh_bucket{le=\"+Inf\"} 1\nh_sum 1\nh_count 2\n",
    ] {
        assert!(!problems(broken).is_empty(), "{broken}");
    }
    assert_eq!(problems(&format!("{head}a_total 1\na_total{{x=\"y\"}} 1\n")), Vec::<String>::new());
}

/// The problems of a text in the exposition format.
fn problems(text: &str) -> Vec<String> {
    let mut found = Vec::new();
    if !text.ends_with('\n') {
        found.push("the last line does not end".into());
    }
    let mut families = BTreeSet::new();
    for family in text.split("# HELP ").skip(1) {
        let name = family.split(' ').next().unwrap_or_default();
        if !families.insert(name) {
            found.push(format!("{name} comes twice"));
        }
        found.extend(in_family(name, family));
    }
    if !text.starts_with("# HELP ") {
        found.push("a sample is of no family".into());
    }
    found
}

fn in_family(name: &str, family: &str) -> Vec<String> {
    let mut lines = family.lines().skip(1);
    let kind = lines.next().and_then(|line| line.strip_prefix(&format!("# TYPE {name} ")));
    let Some(kind) = kind.filter(|kind| ["counter", "gauge", "histogram"].contains(kind)) else {
        return vec![format!("{name} has no type")];
    };
    let mut found = Vec::new();
    if (kind == "counter") != name.ends_with("_total") || !is_word(name) {
        found.push(format!("{name} is no name of a {kind}"));
    }
    let mut samples = BTreeMap::new();
    for line in lines {
        match sample(line) {
            None => found.push(format!("this is no sample: {line}")),
            Some((series, value)) => {
                let own = series.split('{').next().unwrap_or_default();
                let suffix = own.strip_prefix(name);
                let fits = match kind {
                    "histogram" => matches!(suffix, Some("_bucket" | "_sum" | "_count")),
                    _ => suffix == Some(""),
                };
                if !fits || samples.insert(series, value).is_some() {
                    found.push(format!("{series} does not belong to {name}, or comes twice"));
                }
            }
        }
    }
    if kind == "histogram" {
        found.extend(in_histogram(name, family));
    }
    found
}

/// Checks that counts at the bounds do not fall, and that the last counts all.
fn in_histogram(name: &str, family: &str) -> Option<String> {
    let samples: Vec<_> = family.lines().filter_map(sample).collect();
    let buckets = samples.iter().filter(|(series, _)| series.contains("_bucket{le="));
    let counts: Vec<f64> = buckets.map(|(_, count)| *count).collect();
    let all = samples.iter().find(|(series, _)| series.ends_with("_count")).map(|(_, all)| *all);
    let infinite = samples.iter().any(|(series, _)| series.ends_with("{le=\"+Inf\"}"));
    let sound = counts.is_sorted() && infinite && counts.last().copied() == all;
    (!sound).then(|| format!("{name} is no histogram"))
}

/// A series and its value.
fn sample(line: &str) -> Option<(&str, f64)> {
    let (series, value) = line.rsplit_once(' ')?;
    let (name, labels) = series.split_once('{').unwrap_or((series, "x=\"\"}"));
    let mut labels = labels.strip_suffix("\"}")?.split("\",");
    let sound = labels.all(|label| {
        let plain = |value: &str| {
            let escapes = ["\\\\", "\\\"", "\\n"].into_iter();
            let rest = escapes.fold(value.to_string(), |rest, escape| rest.replace(escape, ""));
            !rest.contains(['"', '\\', '\n'])
        };
        label.split_once("=\"").is_some_and(|(name, value)| is_word(name) && plain(value))
    });
    (is_word(name) && sound).then_some((series, value.parse().ok()?))
}

fn is_word(word: &str) -> bool {
    !word.is_empty() && word.bytes().all(|byte| byte.is_ascii_lowercase() || byte == b'_')
}
