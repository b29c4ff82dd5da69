//! Writes the seed corpora of the fuzz targets from the fixtures of the tests.

use std::error::Error;
use std::fs;
use std::path::Path;

use engine::context::{Batch, SeqSet};
use engine::gguf::{Array, Gguf, GgufWriter, Metadata, StringArray, Value};
use kernels::GgmlType;

const TEMPLATES: [&str; 5] = [
    "{% for m in messages %}{{ '<|im_start|>' + m['role'] + '\n' + m['content'] + '<|im_end|>' + '\n' }}{% endfor %}",
    "{{- bos_token }}{%- set ns = namespace(n=0) %}{% for m in messages %}{% if m.role == 'user' %}{% set ns.n = ns.n + 1 %}[INST] {{ m.content | trim }} [/INST]{% else %}{{ m.content.strip() }}{% endif %}{% endfor %}",
    "{% macro say(x, y='z') %}{{ x | upper }}{{ y | tojson }}{% endmacro %}{{ say(messages[0].role, y=messages[-1]) }}",
    "{% if not add_generation_prompt is defined %}{% set add_generation_prompt = false %}{% endif %}{{ strftime_now('%d %b %Y') }}{{ raise_exception('no') if messages[0] is mapping }}",
    "{%- for i in range(3) -%}{{ loop.index ~ '%s|%s' | format(i, messages | length) }}{{ messages | map(attribute='role') | join(', ') | replace('u', 'v') }}{%- endfor -%}",
];

fn main() -> Result<(), Box<dyn Error>> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let corpus = |target: &str| -> std::io::Result<_> {
        let directory = root.join("corpus").join(target);
        fs::create_dir_all(&directory).map(|()| directory)
    };
    let (header, declare, load) = (corpus("header")?, corpus("declare")?, corpus("load")?);
    let declaration = corpus("declaration")?;
    for entry in fs::read_dir(root.join("../tests/data/archs"))? {
        let path = entry?.path();
        let name = path.file_name().and_then(|n| n.to_str()).unwrap_or_default();
        if !name.ends_with(".header.gguf") {
            continue;
        }
        let bytes = fs::read(&path)?;
        fs::write(header.join(name), &bytes)?;
        fs::write(declare.join(name), &bytes)?;
        let arch: String = Gguf::parse_header(&bytes)?.require("general.architecture")?;
        if let Ok(text) = fs::read(root.join("../archs").join(arch.replace('-', "_") + ".rs")) {
            fs::write(declaration.join(name), [&text[..], &[0], &bytes].concat())?;
        }
        fs::write(load.join(name), smaller(&Gguf::parse_header(&bytes)?)?)?;
    }
    states(&corpus("state")?)?;
    adapters(&corpus("adapter")?)?;
    let media = corpus("media")?;
    recorded(&root.join("../tests/data/media/images.bin"), [4, 1], &media)?;
    recorded(&root.join("../tests/data/media/audio.bin"), [4, 2], &media)?;
    let (vocabulary, template) = (corpus("vocabulary")?, corpus("template")?);
    for (i, text) in TEMPLATES.iter().enumerate() {
        fs::write(template.join(format!("{i}")), text)?;
        // Layout of the structured input: two strings and a bool, with lengths at the end.
        fs::write(
            template.join(format!("{i}-message")),
            format!("{text}Why is the sky blue?\u{1}"),
        )?;
    }
    fs::write(
        vocabulary.join("words"),
        "the quick brown fox jumps over the lazy dog <s></s> \u{2581}a \u{120}b".repeat(8),
    )?;
    Ok(())
}

/// Writes the encoded media of a recording. A record has a name, encoded bytes, `skipped` bytes, a count, and `size`
/// decoded bytes per item. The length of the name has one byte. The length of the encoded bytes and the count have
/// four.
fn recorded(file: &Path, [skipped, size]: [usize; 2], directory: &Path) -> Result<(), Box<dyn Error>> {
    let data = fs::read(file)?;
    let mut rest = data.as_slice();
    let mut take = |n: usize| rest.split_off(..n).ok_or("a recording is truncated");
    let number = |bytes: &[u8]| bytes.iter().rev().fold(0, |n, &byte| n << 8 | usize::from(byte));
    while let Ok(n) = take(1) {
        let name = String::from_utf8(take(number(n))?.to_vec())?;
        let n = number(take(4)?);
        fs::write(directory.join(name.replace('/', "-")), take(n)?)?;
        take(skipped)?;
        let n = number(take(4)?);
        take(n * size)?;
    }
    Ok(())
}

/// Writes states with one sequence, with several sequences that share cells, with more tokens than the
/// window, and of a single sequence.
fn states(directory: &Path) -> Result<(), Box<dyn Error>> {
    let mut ctx = fuzz_targets::state_context();
    let (mut empty, mut one, mut shared, mut long, mut seq) = (vec![], vec![], vec![], vec![], vec![]);
    ctx.save_state(&mut empty)?;
    let mut batch = Batch::new();
    batch.push_prompt(&[1, 2, 3, 4], 0, 0);
    ctx.decode(&batch)?;
    ctx.save_state(&mut one)?;
    ctx.seq_cp(0, 2, 0..3)?;
    batch.clear();
    batch.push(5, 3, SeqSet::of([2]), true);
    ctx.decode(&batch)?;
    ctx.save_state(&mut shared)?;
    ctx.save_seq(2, &mut seq)?;
    ctx.clear();
    for pos in 0..40 {
        batch.clear();
        batch.push(pos as u32, pos, SeqSet::one(1), false);
        ctx.decode(&batch)?;
    }
    ctx.save_state(&mut long)?;
    for (name, state) in [
        ("empty", empty),
        ("one", one),
        ("shared", shared),
        ("long", long),
        ("seq", seq),
    ] {
        fs::write(directory.join(name), state)?;
    }
    Ok(())
}

/// Writes adapters for matrices, embeddings, and expert stacks, and control vectors.
fn adapters(directory: &Path) -> Result<(), Box<dyn Error>> {
    const RANK: usize = 2;
    for (model, weights) in fuzz_targets::adapted_models().iter().zip([
        ["token_embd.weight", "blk.0.attn_q.weight", "output.weight"],
        [
            "blk.1.ffn_down_exps.weight",
            "blk.0.ffn_gate_exps.weight",
            "blk.1.attn_v.weight",
        ],
    ]) {
        for (i, chosen) in [&weights[..1], &weights[1..], &weights[..]].into_iter().enumerate() {
            let mut out = GgufWriter::new();
            out.set("general.type", "adapter")
                .set("adapter.type", "lora")
                .set("general.architecture", model.arch().name)
                .set("adapter.lora.alpha", 4.0f32);
            for &name in chosen {
                let row = model.tensors().iter().find(|r| r.name == name).ok_or(name)?;
                let [n_in, n_out, n, _] = row.ne;
                let (a, b) = if name.starts_with("token_embd") {
                    ([RANK, n_out, n], [RANK, n_in, n])
                } else {
                    ([n_in, RANK, n], [RANK, n_out, n])
                };
                let n_dims = if n > 1 { 3 } else { 2 };
                out.add_tensor_with(format!("{name}.lora_a"), GgmlType::F32, &a[..n_dims], |_| Ok(()))?;
                out.add_tensor_with(format!("{name}.lora_b"), GgmlType::F32, &b[..n_dims], |_| Ok(()))?;
            }
            fs::write(directory.join(format!("{}-{i}", model.arch().name)), out.header()?)?;
        }
    }
    let mut out = GgufWriter::new();
    out.add_tensor_with("direction.1".to_owned(), GgmlType::F32, &[256], |_| Ok(()))?;
    fs::write(directory.join("control"), out.header()?)?;
    Ok(())
}

/// Returns the fixture with all sizes of at least 64 divided by eight and a vocabulary of 16 tokens, so that
/// its model loads quickly.
fn smaller(header: &Gguf) -> Result<Vec<u8>, Box<dyn Error>> {
    let small = |n: usize| if n >= 64 { n / 8 } else { n };
    let metadata: Metadata = header
        .metadata
        .iter()
        .map(|(key, value)| {
            let value = match value {
                Value::U32(n) => Value::U32(small(*n as usize) as u32),
                Value::Array(Array::String(s)) => {
                    Value::Array(Array::String(s.iter().take(small(s.len())).collect::<StringArray>()))
                }
                Value::Array(Array::F32(v)) => Value::Array(Array::F32(v[..small(v.len())].to_vec())),
                Value::Array(Array::I32(v)) => Value::Array(Array::I32(v[..small(v.len())].to_vec())),
                other => other.clone(),
            };
            (key.to_owned(), value)
        })
        .collect();
    let mut writer = GgufWriter::with_metadata(metadata);
    for t in header.tensors() {
        let ne: Vec<usize> = t.shape().iter().map(|&n| small(n)).collect();
        writer.add_tensor_with(t.name.clone(), t.ty, &ne, |_| Ok(()))?;
    }
    Ok(writer.header()?)
}
