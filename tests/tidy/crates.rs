//! The rule of the crates: the dependencies that each may have.

use std::io;
use std::path::Path;

/// The manifest of a member of the workspace.
pub struct Manifest {
    name: String,
    /// The crates of the workspace that it depends on, for any purpose and target.
    uses: Vec<String>,
}

/// Each crate, with the crates that it may use.
const ALLOWED: [(&str, &[&str]); 9] = [
    ("everstep-transport", &[]),
    ("everstep-kernels", &[]),
    ("everstep-checkpoint", &["everstep-transport", "everstep-kernels"]),
    ("everstep-failpoint", &[]),
    ("everstep-coordinator", &["everstep-transport", "everstep-failpoint"]),
    (
        "everstep-worker",
        &["everstep-transport", "everstep-kernels", "everstep-checkpoint", "everstep-failpoint"],
    ),
    (
        "everstep-chaos",
        &[
            "everstep-transport",
            "everstep-kernels",
            "everstep-checkpoint",
            "everstep-coordinator",
            "everstep-worker",
        ],
    ),
    (
        "everstep",
        &[
            "everstep-transport",
            "everstep-kernels",
            "everstep-checkpoint",
            "everstep-coordinator",
            "everstep-worker",
            "everstep-chaos",
        ],
    ),
    ("everstep-python", &["everstep", "everstep-transport", "everstep-kernels", "everstep-worker"]),
];

/// The manifests of all members of the workspace at `root`.
pub fn manifests(root: &Path) -> io::Result<Vec<Manifest>> {
    let workspace = table(&std::fs::read_to_string(root.join("Cargo.toml"))?)?;
    let members = workspace["workspace"]["members"].as_array().cloned().unwrap_or_default();
    let read = |member: &toml::Value| {
        let path = root.join(member.as_str().unwrap_or_default()).join("Cargo.toml");
        Ok(manifest(&table(&std::fs::read_to_string(path)?)?))
    };
    members.iter().map(read).collect()
}

/// The problems of a crate's dependencies.
pub fn problems(manifest: &Manifest) -> Vec<String> {
    let Manifest { name, uses } = manifest;
    let Some((_, allowed)) = ALLOWED.iter().find(|(known, _)| known == name) else {
        return vec![format!("{name}: the crate is new: say in this test what it may use")];
    };
    let stranger = |used: &&String| !allowed.contains(&used.as_str());
    uses.iter().filter(stranger).map(|used| format!("{name}: must not depend on {used}")).collect()
}

fn manifest(table: &toml::Table) -> Manifest {
    let mut uses = dependencies(table);
    for target in table.get("target").and_then(toml::Value::as_table).into_iter().flatten() {
        uses.extend(target.1.as_table().map(dependencies).unwrap_or_default());
    }
    Manifest { name: table["package"]["name"].as_str().unwrap_or_default().into(), uses }
}

fn dependencies(table: &toml::Table) -> Vec<String> {
    ["dependencies", "dev-dependencies", "build-dependencies"]
        .iter()
        .filter_map(|section| table.get(*section)?.as_table())
        .flat_map(|section| section.keys())
        .filter(|name| name.starts_with("everstep"))
        .cloned()
        .collect()
}

fn table(text: &str) -> io::Result<toml::Table> {
    text.parse().map_err(io::Error::other)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(text: &str) -> Vec<String> {
        problems(&manifest(&table(text).unwrap()))
    }

    #[test]
    fn a_dependency_against_the_direction_is_found_wherever_it_stands() {
        for section in ["dependencies", "dev-dependencies", "target.'cfg(unix)'.dependencies"] {
            let text = format!(
                "[package]\nname = \"everstep-worker\"\n\
                 [{section}]\neverstep-coordinator.workspace = true\neverstep-kernels = \"1\""
            );
            assert_eq!(found(&text), ["everstep-worker: must not depend on everstep-coordinator"]);
        }
    }

    #[test]
    fn a_new_crate_must_be_placed() {
        assert_eq!(found("[package]\nname = \"everstep-new\"").len(), 1);
    }
}
