//! Every architecture in configurations without fixtures: models load, results are finite, and do not depend
//! on the ubatch size.

use std::sync::Arc;

use engine::conformance::all_logits;
use engine::context::ContextParams;
use engine::gguf::{Gguf, GgufFile, Value};
use engine::model::{LoadParams, Model};
use engine::vocab::Token;
use tests::variation::{Configuration, Variation};
use tests::{data_dir, exact, fixture, fixture_names, nmse};

const N_TOKENS: usize = 40;

#[test]
fn variations_load_and_decode() {
    let fixtures = engine::conformance::fixtures(&data_dir().join("archs")).expect("the directory is readable");
    let only = std::env::var("LLAMA_ARCH").unwrap_or_default();
    let (mut failures, mut refused, mut n) = (Vec::new(), Vec::new(), 0);
    for fixture in fixtures.iter().filter(|f| f.name.contains(&only)) {
        let plain = Configuration::of(&Gguf::open_header(&fixture.header).expect("the fixture is readable")).small();
        for variation in Variation::ALL {
            let name = format!("{}, {variation:?}", fixture.name);
            let Some(varied) = plain.varied(variation) else {
                refused.push(name);
                continue;
            };
            n += 1;
            failures.extend(run(&varied, 1e-9).err().map(|e| format!("{name}: {e}")));
        }
    }
    println!("{n} configurations; rejected: {refused:?}");
    assert!(
        failures.is_empty(),
        "{} of {n}:\n{}",
        failures.len(),
        failures.join("\n")
    );
}

#[test]
fn models_without_rotation_load_and_decode() {
    let (mut failures, mut n) = (Vec::new(), 0);
    for name in fixture_names() {
        let plain = Configuration::of(&Gguf::open_header(fixture(&name).header).expect("the fixture is readable"));
        let Some(unrotated) = plain.small().changed(0, &[("rope.dimension_count", Value::U32(0))]) else {
            continue;
        };
        n += 1;
        failures.extend(run(&unrotated, 1e-9).err().map(|e| format!("{name}: {e}")));
    }
    assert!(
        failures.is_empty() && n > 100,
        "{} of {n}:\n{}",
        failures.len(),
        failures.join("\n")
    );
}

/// Writes the model and the header of every configuration, so that another engine can record its logits. Models are
/// `NAME.gguf` with seeded weights. Run it with `LLAMA_VARIATIONS=DIR cargo test -p llama-tests --test all
/// write_variations -- --ignored`.
#[test]
#[ignore = "writes files"]
fn write_variations() {
    let directory = std::env::var_os("LLAMA_VARIATIONS").expect("LLAMA_VARIATIONS names a directory");
    let directory = std::path::PathBuf::from(directory);
    let fixtures = engine::conformance::fixtures(&data_dir().join("archs")).expect("the directory is readable");
    let only = std::env::var("LLAMA_ARCH").unwrap_or_default();
    for fixture in fixtures.iter().filter(|f| f.name.contains(&only)) {
        let plain = Configuration::of(&Gguf::open_header(&fixture.header).expect("the fixture is readable"));
        for variation in Variation::ALL {
            let Some(varied) = plain.varied(variation) else {
                continue;
            };
            let name = format!("{}-{variation:?}", fixture.name);
            if directory.join(format!("{name}.logits")).exists() {
                continue;
            }
            let bytes = varied.file();
            let header = Gguf::parse_header(&bytes).expect("a valid file").data_offset();
            std::fs::write(directory.join(format!("{name}.gguf")), &bytes).expect("the directory is writable");
            std::fs::write(directory.join(format!("{name}.header.gguf")), &bytes[..header])
                .expect("the directory is writable");
        }
    }
}

fn run(configuration: &Configuration, limit: f64) -> Result<(), String> {
    let file = GgufFile::from_bytes("varied.gguf", &configuration.file()).map_err(|e| e.to_string())?;
    let model = Model::from_file(file, archs::ALL, &LoadParams::default()).map_err(|e| e.to_string())?;
    let model = Arc::new(model);
    let n_vocab = model.base().n_vocab();
    let tokens: Vec<Token> = (0..N_TOKENS).map(|i| (i * 37 % n_vocab) as Token).collect();
    let logits = |n_ubatch| {
        let params = ContextParams {
            n_ubatch,
            ..exact().context
        };
        all_logits(model.clone(), &tokens, &params).map_err(|e| e.to_string())
    };
    let whole = logits(N_TOKENS)?;
    if !whole.iter().all(|x| x.is_finite()) {
        return Err("results are not finite".to_owned());
    }
    let pieces = logits(7)?;
    let error = nmse(&whole, &pieces);
    if error > limit {
        return Err(format!("ubatches of 7 tokens change the results by {error:.1e}"));
    }
    Ok(())
}
