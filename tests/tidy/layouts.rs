//! The layouts of everything that crosses a wire or lies in the files of a coordinator: the fields
//! and variants, in order, of each type that derives rkyv's `Archive`. Golden bytes of examples do
//! not show a variant that no example has. This list shows them all.

use quote::ToTokens;
use syn::{Attribute, Fields, Item};

use super::names;
use super::source::Source;

/// All layouts as text: a line `CRATE TYPE`, and below it a line for each field or variant.
pub fn text(sources: &[Source]) -> String {
    let is_production = |source: &&Source| names::is_production(&source.path);
    let mut layouts: Vec<String> = sources.iter().filter(is_production).flat_map(of_file).collect();
    layouts.sort();
    layouts.concat()
}

/// What differs between two such texts, in words.
pub fn changes(before: &str, now: &str) -> Vec<String> {
    let split = |text: &str| -> Vec<String> {
        let mut layouts: Vec<String> = Vec::new();
        for line in text.lines() {
            match layouts.last_mut() {
                Some(layout) if line.starts_with(' ') => *layout += &format!("\n{line}"),
                _ => layouts.push(line.into()),
            }
        }
        layouts
    };
    let (before, now) = (split(before), split(now));
    let gone = before.iter().filter(|layout| !now.contains(layout));
    let new = now.iter().filter(|layout| !before.contains(layout));
    let gone = gone.map(|layout| format!("is no more: {layout}"));
    gone.chain(new.map(|layout| format!("is new: {layout}"))).collect()
}

fn of_file(source: &Source) -> Vec<String> {
    let home = source.path.split('/').next().unwrap_or_default();
    let text = names::production(&source.text);
    // Most files have none, and parsing is slow.
    if !text.contains("Archive") {
        return Vec::new();
    }
    let file = syn::parse_file(text).unwrap_or_else(|error| panic!("{}: {error}", source.path));
    file.items.iter().filter_map(|item| layout(home, item)).collect()
}

fn layout(home: &str, item: &Item) -> Option<String> {
    let (attributes, name, lines) = match item {
        Item::Struct(item) => (&item.attrs, &item.ident, fields(&item.fields)),
        Item::Enum(item) => {
            let variants = item.variants.iter().map(|variant| {
                format!("{}({})", variant.ident, fields(&variant.fields).join(", "))
            });
            (&item.attrs, &item.ident, variants.collect())
        }
        _ => return None,
    };
    let lines = lines.iter().map(|line| format!("    {line}\n"));
    is_archived(attributes).then(|| format!("{home} {name}\n{}", lines.collect::<String>()))
}

fn fields(fields: &Fields) -> Vec<String> {
    let field = |field: &syn::Field| {
        let kind = field.ty.to_token_stream().to_string().replace(' ', "");
        match &field.ident {
            Some(name) => format!("{name}: {kind}"),
            None => kind,
        }
    };
    fields.iter().map(field).collect()
}

fn is_archived(attributes: &[Attribute]) -> bool {
    let derives = attributes.iter().filter(|attribute| attribute.path().is_ident("derive"));
    derives.map(|derive| derive.meta.to_token_stream().to_string()).any(|derive| {
        derive.split(|letter: char| !letter.is_alphanumeric()).any(|word| word == "Archive")
    })
}
