//! Selects the files of a repository that a model name refers to.

use std::collections::HashMap;

use super::name::Name;

/// Default quantizations, in order of preference.
const PREFERRED: &[&str] = &[
    "Q4_K_M", "MXFP4", "Q4_K_S", "Q4_0", "Q5_K_M", "Q4_1", "Q6_K", "Q8_0", "BF16", "F16",
];

/// Maximum number of shards of a model.
const MAX_SHARDS: u32 = 1000;
/// Maximum number of files that an error lists.
const MAX_LISTED: usize = 20;

/// Returns the files of the model that `name` refers to, first shard first. The error lists the available
/// files.
pub fn files<'a>(name: &Name, paths: &[&'a str]) -> Result<Vec<&'a str>, String> {
    let models: Vec<&str> = paths.iter().copied().filter(|path| is_model(path)).collect();
    let first = match (&name.file, &name.quant) {
        (Some(file), _) => paths
            .iter()
            .copied()
            .find(|path| path == file && path.to_ascii_lowercase().ends_with(".gguf")),
        (None, Some(quant)) => of_quant(&models, quant),
        (None, None) => PREFERRED
            .iter()
            .find_map(|quant| of_quant(&models, quant))
            .or(models.first().copied()),
    };
    let first = first.ok_or_else(|| not_there(name, &models))?;
    shards(first, &models).map_err(|part| {
        format!(
            "{}: {first} is one of several shards, but {part} is missing",
            name.repository()
        )
    })
}

/// Preferred types of projectors, which encoders read without loss.
const PROJECTORS: &[&str] = &["F16", "BF16", "Q8_0", "F32"];

/// Returns the projector of the model whose first file is `first`: in the directory of the model, or in a parent.
pub fn projector<'a>(first: &str, paths: &[&'a str]) -> Option<&'a str> {
    let mut directory = first;
    loop {
        directory = directory.rsplit_once('/').map_or("", |(parent, _)| parent);
        let name_in = |path: &&'a str| {
            let (parent, name) = path.rsplit_once('/').unwrap_or(("", path));
            parent == directory && is_projector(name)
        };
        let here: Vec<&str> = paths.iter().copied().filter(name_in).collect();
        let preferred = PROJECTORS.iter().find_map(|quant| of_quant(&here, quant));
        match preferred.or(here.first().copied()) {
            None if directory.is_empty() => return None,
            None => {}
            found => return found,
        }
    }
}

/// Returns true for projector files.
pub fn is_projector(path: &str) -> bool {
    let name = path.rsplit('/').next().unwrap_or(path).to_ascii_lowercase();
    name.ends_with(".gguf") && name.contains("mmproj")
}

fn not_there(name: &Name, models: &[&str]) -> String {
    let repo = name.repository();
    let mut quants: Vec<&str> = models.iter().filter_map(|path| quant(path)).collect();
    quants.sort_unstable();
    quants.dedup();
    let listed = |names: &[&str]| match names.len() {
        0..=MAX_LISTED => names.join(", "),
        n => format!("{}, and {} more", names[..MAX_LISTED].join(", "), n - MAX_LISTED),
    };
    match (&name.file, &name.quant) {
        _ if models.is_empty() => format!("{repo} has no GGUF files"),
        (Some(file), _) => format!("{repo} has no GGUF file {file:?}; available: {}", listed(models)),
        (None, Some(quant)) if quants.is_empty() => format!(
            "{repo} has no file with {quant} in its name; available: {}",
            listed(models)
        ),
        (None, Some(quant)) => format!("{repo} has no {quant}; available: {}", listed(&quants)),
        (None, None) => format!("{repo} has no model file"),
    }
}

/// Returns true for model weights; false for projector and imatrix files.
pub fn is_model(path: &str) -> bool {
    let name = path.rsplit('/').next().unwrap_or(path).to_ascii_lowercase();
    name.ends_with(".gguf") && !name.contains("mmproj") && !name.contains("imatrix")
}

/// Returns the file of a quantization, or its first shard.
fn of_quant<'a>(models: &[&'a str], quantization: &str) -> Option<&'a str> {
    let matches = |path: &&str| quant(path).is_some_and(|q| q.eq_ignore_ascii_case(quantization));
    let is_first = |path: &&str| part(path).is_none_or(|(_, no, _)| no == 1);
    let exact = models.iter().copied().filter(is_first).find(matches);
    exact.or_else(|| {
        // Accept longer names that start with the quantization, such as MXFP4_MOE.
        let begins = |path: &&str| {
            quant(path).is_some_and(|q| {
                q.get(..quantization.len())
                    .is_some_and(|start| start.eq_ignore_ascii_case(quantization))
                    && q[quantization.len()..].starts_with('_')
            })
        };
        models.iter().copied().filter(is_first).find(begins)
    })
}

/// Returns the quantization in a file name: `Q4_K_M` in `model-Q4_K_M-00001-of-00002.gguf`.
pub fn quant(path: &str) -> Option<&str> {
    let name = path.rsplit('/').next()?;
    let stem = name.get(..name.len().checked_sub(".gguf".len())?)?;
    let stem = part(path).map_or(stem, |(stem, ..)| stem.rsplit('/').next().unwrap_or(stem));
    let start = stem.rfind(['-', '.']).map_or(0, |at| at + 1);
    let word = &stem[start..];
    let upper = word.to_ascii_uppercase();
    let is_quant = ["F32", "F16", "BF16", "FP16"].contains(&upper.as_str())
        || upper.starts_with("MXFP4")
        || upper.starts_with("NVFP4")
        || ["IQ", "TQ", "Q"].iter().any(|kind| {
            let rest = upper.strip_prefix(kind);
            rest.is_some_and(|rest| rest.starts_with(|c: char| c.is_ascii_digit()))
        });
    let before = &stem[..start];
    if !is_quant {
        None
    } else if before.ends_with("UD-") {
        // Unsloth's dynamic quantizations have the prefix UD.
        Some(&stem[start - 3..])
    } else {
        Some(word)
    }
}

/// Splits a shard name: `a-00001-of-00002.gguf` is `("a", 1, 2)`.
fn part(path: &str) -> Option<(&str, u32, u32)> {
    let stem = path.get(..path.len().checked_sub(".gguf".len())?)?;
    let (rest, all) = stem.rsplit_once("-of-")?;
    let (stem, no) = rest.rsplit_once('-')?;
    let number = |text: &str| text.parse().ok().filter(|&n: &u32| text.len() == 5 && n > 0);
    let (no, all) = (number(no)?, number(all)?);
    (no <= all).then_some((stem, no, all))
}

/// Returns all shards of the model that starts with `first`. The error is the name of a missing shard.
fn shards<'a>(first: &'a str, models: &[&'a str]) -> Result<Vec<&'a str>, String> {
    let Some((stem, _, n)) = part(first) else {
        return Ok(vec![first]);
    };
    if n > MAX_SHARDS {
        return Err(format!("a file number below {}", MAX_SHARDS + 1));
    }
    let models: HashMap<&str, &'a str> = models.iter().map(|path| (*path, *path)).collect();
    let extension = &first[first.len() - ".gguf".len()..];
    let names = (1..=n).map(|no| format!("{stem}-{no:05}-of-{n:05}{extension}"));
    names
        .map(|name| models.get(name.as_str()).copied().ok_or(name))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const PATHS: &[&str] = &[
        "README.md",
        "mmproj-F16.gguf",
        "m-Q8_0.gguf",
        "m-Q4_K_M.gguf",
        "UD/m-UD-Q4_K_XL.gguf",
        "big/m-BF16-00001-of-00002.gguf",
        "big/m-BF16-00002-of-00002.gguf",
        "torn-F16-00001-of-00002.gguf",
        "m-mxfp4_moe.gguf",
    ];

    fn chosen(name: &str, paths: &[&'static str]) -> Result<Vec<&'static str>, String> {
        files(&Name::parse(name).unwrap(), paths)
    }

    #[test]
    fn thousands_of_files_are_selected_in_time() {
        let name = |text: &str| Name::parse(text).unwrap();
        let start = std::time::Instant::now();
        let many: Vec<String> = (1..=90_000).map(|i| format!("m-Q4_K_M-{i:05}-of-90000.gguf")).collect();
        let many: Vec<&str> = many.iter().map(String::as_str).collect();
        assert!(
            files(&name("u/r"), &many)
                .unwrap_err()
                .contains("a file number below 1001")
        );
        let shards: Vec<String> = (1..=1000).map(|i| format!("m-Q4_K_M-{i:05}-of-01000.gguf")).collect();
        let others: Vec<String> = (0..80_000).map(|i| format!("m{i}-Q{i}_{i}.gguf")).collect();
        let all: Vec<&str> = others.iter().chain(&shards).map(String::as_str).collect();
        assert_eq!(files(&name("u/r"), &all).unwrap().len(), 1000);
        let error = files(&name("u/r:Q9_X"), &all).unwrap_err();
        assert!(error.ends_with(" more") && error.len() < 2000, "{error}");
        assert!(start.elapsed().as_secs() < 20);
    }

    #[test]
    fn quantization_lookup_ignores_case() {
        for (name, path) in [
            ("u/r", "m-Q4_K_M.gguf"),
            ("u/r:q8_0", "m-Q8_0.gguf"),
            ("u/r:UD-Q4_K_XL", "UD/m-UD-Q4_K_XL.gguf"),
            ("u/r:MXFP4", "m-mxfp4_moe.gguf"),
        ] {
            assert_eq!(chosen(name, PATHS), Ok(vec![path]), "{name}");
        }
        assert_eq!(chosen("u/r", &["any.gguf", "other.gguf"]), Ok(vec!["any.gguf"]));
    }

    #[test]
    fn projector_is_selected_next_to_model() {
        let of = |paths: &[&'static str]| projector("UD/m-Q4_0.gguf", paths);
        assert_eq!(of(PATHS), Some("mmproj-F16.gguf"));
        assert_eq!(of(&["m-Q4_0.gguf", "other/mmproj-F16.gguf"]), None);
        let several = [
            "mmproj-F32.gguf",
            "m-MMPROJ-bf16.gguf",
            "mmproj-Q4_0.gguf",
            "UD/mmproj-x.gguf",
        ];
        assert_eq!(
            of(&several),
            Some("UD/mmproj-x.gguf"),
            "the directory of the model comes first"
        );
        assert_eq!(of(&several[..3]), Some("m-MMPROJ-bf16.gguf"));
        assert_eq!(of(&["mmproj-Q4_0.gguf"]), Some("mmproj-Q4_0.gguf"));
    }

    #[test]
    fn shards_are_selected_together() {
        assert_eq!(chosen("u/r:BF16", PATHS), Ok(PATHS[5..7].to_vec()));
        let torn = chosen("u/r:F16", PATHS).unwrap_err();
        assert!(torn.contains("torn-F16-00002-of-00002.gguf"), "{torn}");
    }

    #[test]
    fn missing_file_error_lists_available_files() {
        let missing = chosen("u/r:Q2_K", PATHS).unwrap_err();
        assert!(
            missing.contains("no Q2_K") && missing.contains("Q4_K_M") && !missing.contains("mmproj"),
            "{missing}"
        );
        assert!(chosen("u/r", &["README.md"]).unwrap_err().contains("no GGUF files"));
        let name = Name::parse("u/r").unwrap().with_file("README.md");
        assert!(files(&name, PATHS).is_err(), "not a model file");
        let name = Name::parse("u/r").unwrap().with_file("mmproj-F16.gguf");
        assert_eq!(files(&name, PATHS), Ok(vec!["mmproj-F16.gguf"]));
    }

    #[test]
    fn unusual_names_have_no_quantization() {
        for path in [
            ".gguf",
            "gguf",
            "Q",
            "é.gguf",
            "a-Qwen.gguf",
            "00001-of-00002.gguf",
            "x-00000-of-00001.gguf",
        ] {
            assert_eq!(quant(path), None, "{path}");
        }
    }
}
