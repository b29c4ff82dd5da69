//! Test of the table of kernels in `kernels/README.md`.
//!
//! `LLAMA_UPDATE=1 cargo test -p llama-kernels kernel_table` rewrites the table.

use super::*;
use crate::Precision;
use crate::activations::form_with;
use crate::interleaved::can_interleave;
use crate::matmul::Algorithm;

/// Marker lines of the table in the document.
const BEGIN: &str = "<!-- kernel table: generated -->\n";
const END: &str = "<!-- end of kernel table -->";

/// More columns than any limit between two kernels.
const MAX_N: usize = 100;

/// Settings of precision and layout, with their names in the table.
const SETTINGS: [(&str, Precision, bool); 4] = [
    ("fast", Precision::Fast, true),
    ("fast, file layout", Precision::Fast, false),
    ("high", Precision::High, true),
    ("exact", Precision::Exact, true),
];

/// Returns the module that multiplies weights of a type by `n` columns.
fn module(isa: Isa, ty: GgmlType, n: usize, precision: Precision, repacks: bool) -> &'static str {
    let kernels = kernels_of(isa);
    let layout = if repacks && can_interleave(ty, ty.block_size().max(32)) {
        WeightLayout::Interleaved
    } else {
        WeightLayout::Rows { stride: 0 }
    };
    let args = MatMul {
        ty,
        w: &[],
        layout,
        m: 0,
        k: 0,
        x: Activations::F32 { x: &[], stride: 0 },
        n,
        allow_reassociation: precision == Precision::Fast,
        reuse_prepared_x: false,
    };
    match Algorithm::select(kernels, &args, form_with(kernels, ty, n, precision)) {
        Algorithm::Products => "products",
        Algorithm::FloatPanels => "float_panels",
        Algorithm::Interleaved8 if kernels.int.group_panels.is_some() => "interleaved8_zmm",
        Algorithm::Interleaved8 => "interleaved8",
        Algorithm::GroupPanels => "group_panels",
        Algorithm::ByteTiles => "byte_tiles",
        Algorithm::IntProducts => "int_products",
        Algorithm::PanelProducts => "panel_products",
        Algorithm::GemmU8 => "gemm_u8",
        Algorithm::PairPanels => "pair_panels",
        Algorithm::Tiles => "tiles",
    }
}

/// Describes the modules for all numbers of columns, such as "1-31 `interleaved8`, 32+ `gemm_u8`".
fn plan(isa: Isa, ty: GgmlType, precision: Precision, repacks: bool) -> String {
    let modules: Vec<_> = (1..=MAX_N).map(|n| module(isa, ty, n, precision, repacks)).collect();
    let mut first = 1;
    let parts = modules.chunk_by(|a, b| a == b).map(|same| {
        let last = first + same.len() - 1;
        let columns = match last {
            MAX_N => format!("{first}+"),
            _ if same.len() == 1 => format!("{first}"),
            _ => format!("{first}-{last}"),
        };
        first = last + 1;
        format!("{columns} `{}`", same[0])
    });
    parts.collect::<Vec<_>>().join(", ")
}

/// Groups items with equal values, in the order of their first item.
fn group_by<T: Copy, V: PartialEq>(items: &[T], value: impl Fn(T) -> V) -> Vec<(Vec<T>, V)> {
    let mut groups: Vec<(Vec<T>, V)> = Vec::new();
    for &item in items {
        let value = value(item);
        match groups.iter_mut().find(|(_, of_group)| *of_group == value) {
            Some((members, _)) => members.push(item),
            None => groups.push((vec![item], value)),
        }
    }
    groups
}

/// Names a set of types with the same plan.
fn type_names(types: &[GgmlType], all: &[GgmlType]) -> String {
    let is_integer = |ty: &GgmlType| kernels_of(Isa::Scalar).int.find(*ty).is_some();
    let n_integers = all.iter().filter(|ty| is_integer(ty)).count();
    match types.iter().filter(|ty| is_integer(ty)).count() {
        _ if types == all => "all".to_owned(),
        n if n == n_integers => "integer".to_owned(),
        n if 2 * n > n_integers => "other integer".to_owned(),
        _ => types
            .iter()
            .map(|ty| ty.name().to_uppercase())
            .collect::<Vec<_>>()
            .join(" "),
    }
}

/// Returns the table. Types with the same plan share a row, and so do instruction sets.
fn table() -> String {
    let all: Vec<GgmlType> = scalar_decoders().into_iter().map(|(ty, _)| ty).collect();
    let mut table = String::from("| precision | types | instruction sets | columns and module |\n|---|---|---|---|\n");
    for (name, precision, repacks) in SETTINGS {
        let mut rows: Vec<(Vec<GgmlType>, String, Vec<&str>)> = Vec::new();
        for isa in Isa::ALL {
            for (types, plan) in group_by(&all, |ty| plan(isa, ty, precision, repacks)) {
                match rows.iter_mut().find(|row| row.0 == types && row.1 == plan) {
                    Some((.., isas)) => isas.push(isa.name()),
                    None => rows.push((types, plan, vec![isa.name()])),
                }
            }
        }
        rows.sort_by_key(|(types, ..)| all.iter().position(|ty| *ty == types[0]));
        for (types, plan, isas) in rows {
            let types = type_names(&types, &all);
            let isas = if isas.len() == Isa::ALL.len() {
                "all".to_owned()
            } else {
                isas.join(", ")
            };
            table += &format!("| {name} | {types} | {isas} | {plan} |\n");
        }
    }
    table
}

#[test]
fn kernel_table_matches_readme() {
    let path = super::root::root().join("kernels/README.md");
    let text = std::fs::read_to_string(&path).expect("kernels/README.md is readable");
    let begin = text.find(BEGIN).expect("README.md has the begin marker") + BEGIN.len();
    let end = text.find(END).expect("README.md has the end marker");
    let table = table();
    if text[begin..end] == table {
        return;
    }
    if std::env::var_os("LLAMA_UPDATE").is_some() {
        let new = format!("{}{table}{}", &text[..begin], &text[end..]);
        std::fs::write(&path, new).expect("kernels/README.md is writable");
        return;
    }
    panic!("kernels/README.md: the kernel table is out of date; LLAMA_UPDATE=1 rewrites it");
}
