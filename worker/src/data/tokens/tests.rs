//! Files of tokens as other programs write them, good and bad.

use std::fs;

use everstep_transport::protocol::run::TokenType;
use tempfile::TempDir;

use super::*;

/// Files in a directory of their own, `0.bin`, `1.bin` and so on.
pub(in crate::data) struct Files {
    directory: TempDir,
    paths: Vec<PathBuf>,
}

impl Files {
    pub(in crate::data) fn of(contents: &[Vec<u8>]) -> Self {
        let directory = tempfile::tempdir().expect("a directory");
        let paths =
            (0..contents.len()).map(|number| directory.path().join(format!("{number}.bin")));
        let paths: Vec<_> = paths.collect();
        for (path, content) in paths.iter().zip(contents) {
            fs::write(path, content).expect("written");
        }
        Self { directory, paths }
    }

    pub(in crate::data) fn open(
        &self,
        dtype: Option<TokenType>,
        validation: f64,
        vocabulary: u32,
    ) -> Result<Tokens, TokenFileError> {
        let path = self.directory.path().display().to_string();
        let (kind, validation_every) = ("tokens".into(), 0);
        let data = DataSpec { kind, path, validation, dtype, validation_every };
        Tokens::open(&files(&data.path)?, &data, vocabulary)
    }
}

/// A header and 16-bit tokens, as llm.c writes for GPT-2.
pub(in crate::data) fn llm_c(tokens: Range<u16>) -> Vec<u8> {
    let mut bytes = header(20240520, 1, tokens.len() as i32);
    bytes.extend(raw(tokens));
    bytes
}

/// A header and 32-bit tokens, as llm.c writes for LLaMA 3.
pub(in crate::data) fn wide(tokens: Range<u32>) -> Vec<u8> {
    let mut bytes = header(20240801, 7, tokens.len() as i32);
    bytes.extend(tokens.flat_map(u32::to_le_bytes));
    bytes
}

/// 16-bit tokens without a header, as nanoGPT writes.
fn raw(tokens: Range<u16>) -> Vec<u8> {
    tokens.flat_map(u16::to_le_bytes).collect()
}

fn header(magic: i32, version: i32, tokens: i32) -> Vec<u8> {
    let mut numbers = [0; 256];
    numbers[..3].copy_from_slice(&[magic, version, tokens]);
    numbers.iter().copied().flat_map(i32::to_le_bytes).collect()
}

const U16: Option<TokenType> = Some(TokenType::U16);
const U32: Option<TokenType> = Some(TokenType::U32);

fn all(tokens: &Tokens) -> [Vec<u32>; 2] {
    [tokens.training(), tokens.held_out()]
        .map(|row| tokens.read(row, 0..row.len()).expect("it can be read"))
}

fn refused(content: Vec<u8>, dtype: Option<TokenType>) -> String {
    let opened = Files::of(&[content]).open(dtype, 0.0, 60_000);
    opened.err().expect("it is refused").to_string()
}

#[test]
fn each_file_says_or_is_told_how_it_stores_a_token_and_holds_out_its_own_tail() {
    let files = Files::of(&[llm_c(500..510), wide(20..25), llm_c(0..0), raw(40_000..40_004)]);
    // A stated type is for files without a header, and must not contradict the others.
    let told = files.open(U16, 0.25, 60_000).err().expect("a contradiction").to_string();
    assert!(told.contains("1.bin says that a token has 4 bytes, and data.dtype says 2"), "{told}");
    fs::remove_file(&files.paths[1]).expect("removed");
    let tokens = files.open(U16, 0.25, 60_000).expect("tokens");
    let training = [500, 501, 502, 503, 504, 505, 506, 507, 40_000, 40_001, 40_002];
    assert_eq!(all(&tokens), [training.to_vec(), vec![508, 509, 40_003]]);
    let long = Files::of(&[wide(70_000..70_005)]).open(None, 0.0, 80_000).expect("tokens");
    assert_eq!(all(&long)[0], [70_000, 70_001, 70_002, 70_003, 70_004]);
}

#[test]
fn any_range_is_read_across_files() {
    let files = Files::of(&[llm_c(0..7), wide(7..8), wide(8..20)]);
    let tokens = files.open(None, 0.0, 20).expect("tokens");
    for start in 0..20 {
        for end in start..=20 {
            let read = tokens.read(tokens.training(), start..end).expect("it can be read");
            assert_eq!(read, (start as u32..end as u32).collect::<Vec<_>>());
        }
    }
}

#[test]
fn a_directory_stands_for_its_bin_files() {
    let files = Files::of(&[llm_c(0..3)]);
    fs::write(files.directory.path().join("README.md"), "tokens").expect("written");
    assert_eq!(files.open(None, 0.0, 10).expect("tokens").training().len(), 3);
    fs::remove_file(&files.paths[0]).expect("removed");
    let told = files.open(None, 0.0, 10).err().expect("there are none").to_string();
    assert!(told.contains("ends in .bin"), "{told}");
}

#[test]
fn what_is_not_a_file_of_tokens_is_refused_by_name() {
    for (content, dtype, words) in [
        (raw(0..8), None, "set data.dtype to \"u16\""),
        (vec![1, 2, 3], U16, "has 3 bytes where a token takes 2"),
        (raw(0..7), U32, "has 14 bytes where a token takes 4"),
        (header(20240326, 3, 9), U16, "is a model of llm.c"),
        (header(20240522, 1, 9), None, "is a multiple-choice test of llm.c"),
        (b"MMIDIDX\0\0\x01\0\0\0\0\0\0\0".to_vec(), U16, "is an index of Megatron's"),
        (b"\x93NUMPY\x01\0".to_vec(), U16, "is an array of NumPy"),
        (header(20240520, 2, 0), None, "has version 2 of its format, and this build"),
        (header(20240520, 1, 4), None, "its header states 4 tokens, which take 1032"),
        (header(20240520, 1, -4), U32, "data.dtype says 4: leave data.dtype out"),
        (header(20240801, 1, 0), None, "reads version 7"),
        (llm_c(59_990..60_010), None, "token 10 of"),
    ] {
        let told = refused(content, dtype);
        assert!(told.contains(words), "{told}");
    }
}

#[test]
fn a_token_outside_the_vocabulary_is_named_with_its_file_and_place_however_late_it_comes() {
    let mut content = vec![0; 3 << 20];
    content[(3 << 20) - 4..(3 << 20) - 2].copy_from_slice(&9_u16.to_le_bytes());
    let files = Files::of(&[content]);
    assert!(files.open(U16, 0.1, 10).is_ok());
    let told = files.open(U16, 0.1, 9).err().expect("it is refused").to_string();
    let place = (3 << 20) / 2 - 2;
    assert!(told.starts_with(&format!("token {place} of")), "{told}");
    assert!(told.contains("0.bin is 9, and model.vocabulary is 9: tokens are below it"), "{told}");
}

#[test]
fn the_fingerprint_tells_tokens_type_order_files_and_split_but_no_header() {
    let print = |contents: &[Vec<u8>], validation| {
        let tokens = Files::of(contents).open(U16, validation, 60_000).expect("tokens");
        tokens.fingerprint()
    };
    let long = Files::of(&[wide(0..8)]).open(None, 0.25, 60_000).expect("tokens").fingerprint();
    let all = [
        print(&[llm_c(0..4), llm_c(4..8)], 0.25),
        print(&[llm_c(0..8)], 0.25),
        print(&[llm_c(4..8), llm_c(0..4)], 0.25),
        print(&[llm_c(0..4), llm_c(5..9)], 0.25),
        print(&[llm_c(0..4), llm_c(4..8)], 0.5),
        print(&[llm_c(0..4), llm_c(4..8), llm_c(0..0)], 0.25),
        long,
    ];
    for (at, left) in all.iter().enumerate() {
        assert!(all[at + 1..].iter().all(|right| right != left), "{at} repeats");
    }
    assert_eq!(all[1], print(&[raw(0..8)], 0.25));
}

#[test]
fn a_file_that_changes_later_is_refused_in_words() {
    let files = Files::of(&[raw(0..100)]);
    let tokens = files.open(U16, 0.0, 100).expect("tokens");
    let read = || tokens.read(tokens.training(), 90..100);
    fs::write(&files.paths[0], raw(5..105)).expect("written");
    let told = read().expect_err("a token is outside").to_string();
    assert!(told.contains("0.bin is 100, and model.vocabulary is 100"), "{told}");
    fs::write(&files.paths[0], raw(0..50)).expect("written");
    let error = read().expect_err("it is shorter");
    assert!(matches!(&error, DataError::Refuse(told) if told.contains("90 to 100 are gone")));
}
