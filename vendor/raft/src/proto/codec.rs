//! Changes of members as protobuf encodes them: the log on a disk holds such bytes.
//!
//! Nothing is nested deeper than a list of changes, and nothing recurses. Fields that are not known
//! are passed over, as protobuf does; an enumeration's value that is not known is an error.

use super::eraftpb::{
    ConfChange, ConfChangeSingle, ConfChangeTransition, ConfChangeType, ConfChangeV2,
};

/// Bytes that are no change of members.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct CodecError(&'static str);

type Result<T> = std::result::Result<T, CodecError>;

/// Reads a change of members.
pub fn parse_conf_change_v2(bytes: &[u8]) -> Result<ConfChangeV2> {
    let mut change = ConfChangeV2::default();
    change.merge_from_bytes(bytes)?;
    Ok(change)
}

impl ConfChange {
    pub(crate) fn write_to_bytes(&self) -> Vec<u8> {
        let mut out = Vec::new();
        put_number(&mut out, 1, self.id);
        put_number(&mut out, 2, self.change_type as u64);
        put_number(&mut out, 3, self.node_id);
        put_bytes(&mut out, 4, &self.context);
        out
    }

    pub(crate) fn merge_from_bytes(&mut self, bytes: &[u8]) -> Result<()> {
        fields(bytes, |field| {
            match field {
                (1, Value::Number(id)) => self.id = id,
                (2, Value::Number(kind)) => self.change_type = change_type(kind)?,
                (3, Value::Number(id)) => self.node_id = id,
                (4, Value::Bytes(context)) => self.context = context.to_vec().into(),
                _ => {}
            }
            Ok(())
        })
    }
}

impl ConfChangeV2 {
    /// The encoding: fields by number, and none that has its default.
    pub fn write_to_bytes(&self) -> Vec<u8> {
        let mut out = Vec::new();
        put_number(&mut out, 1, self.transition as u64);
        for change in &self.changes {
            let mut single = Vec::new();
            put_number(&mut single, 1, change.change_type as u64);
            put_number(&mut single, 2, change.node_id);
            put_number_always(&mut out, 2 << 3 | 2);
            put_number_always(&mut out, single.len() as u64);
            out.extend(single);
        }
        put_bytes(&mut out, 3, &self.context);
        out
    }

    pub(crate) fn merge_from_bytes(&mut self, bytes: &[u8]) -> Result<()> {
        fields(bytes, |field| {
            match field {
                (1, Value::Number(kind)) => self.transition = transition(kind)?,
                (2, Value::Bytes(bytes)) => self.changes.push(single(bytes)?),
                (3, Value::Bytes(context)) => self.context = context.to_vec().into(),
                _ => {}
            }
            Ok(())
        })
    }
}

fn single(bytes: &[u8]) -> Result<ConfChangeSingle> {
    let mut single = ConfChangeSingle::default();
    fields(bytes, |field| {
        match field {
            (1, Value::Number(kind)) => single.change_type = change_type(kind)?,
            (2, Value::Number(id)) => single.node_id = id,
            _ => {}
        }
        Ok(())
    })?;
    Ok(single)
}

fn change_type(number: u64) -> Result<ConfChangeType> {
    match number {
        0 => Ok(ConfChangeType::AddNode),
        1 => Ok(ConfChangeType::RemoveNode),
        2 => Ok(ConfChangeType::AddLearnerNode),
        _ => Err(CodecError("a change of a kind that is not known")),
    }
}

fn transition(number: u64) -> Result<ConfChangeTransition> {
    match number {
        0 => Ok(ConfChangeTransition::Auto),
        1 => Ok(ConfChangeTransition::Implicit),
        2 => Ok(ConfChangeTransition::Explicit),
        _ => Err(CodecError("a transition that is not known")),
    }
}

/// A field's content.
enum Value<'a> {
    Number(u64),
    Bytes(&'a [u8]),
    /// Of a type that no field here has.
    Other,
}

fn fields<'a>(
    mut bytes: &'a [u8],
    mut take: impl FnMut((u64, Value<'a>)) -> Result<()>,
) -> Result<()> {
    while !bytes.is_empty() {
        let tag = number(&mut bytes)?;
        let value = match tag & 7 {
            0 => Value::Number(number(&mut bytes)?),
            1 => piece(&mut bytes, 8).map(|_| Value::Other)?,
            2 => {
                let length = number(&mut bytes)?;
                Value::Bytes(piece(&mut bytes, length)?)
            }
            5 => piece(&mut bytes, 4).map(|_| Value::Other)?,
            _ => return Err(CodecError("a field of a type that is not known")),
        };
        match tag >> 3 {
            0 => return Err(CodecError("a field without a number")),
            field => take((field, value))?,
        }
    }
    Ok(())
}

fn piece<'a>(bytes: &mut &'a [u8], length: u64) -> Result<&'a [u8]> {
    let length = usize::try_from(length).map_err(|_| CodecError("it is cut off"))?;
    let (piece, rest) = bytes.split_at_checked(length).ok_or(CodecError("it is cut off"))?;
    *bytes = rest;
    Ok(piece)
}

fn number(bytes: &mut &[u8]) -> Result<u64> {
    let mut number = 0;
    for shift in (0..64).step_by(7) {
        let (&byte, rest) = bytes.split_first().ok_or(CodecError("it is cut off"))?;
        *bytes = rest;
        number |= u64::from(byte & 0x7f) << shift;
        if byte < 0x80 {
            return Ok(number);
        }
    }
    Err(CodecError("a number that is too long"))
}

fn put_number(out: &mut Vec<u8>, field: u64, number: u64) {
    if number != 0 {
        put_number_always(out, field << 3);
        put_number_always(out, number);
    }
}

fn put_bytes(out: &mut Vec<u8>, field: u64, bytes: &[u8]) {
    if !bytes.is_empty() {
        put_number_always(out, field << 3 | 2);
        put_number_always(out, bytes.len() as u64);
        out.extend(bytes);
    }
}

fn put_number_always(out: &mut Vec<u8>, mut number: u64) {
    while number >= 0x80 {
        out.push(number as u8 | 0x80);
        number >>= 7;
    }
    out.push(number as u8);
}
