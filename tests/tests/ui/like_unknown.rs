//! No architecture of that name beside this file.

arch_macros::arch! {
    name: "tiny";
    like: "no-such";
    rope: norm;
}

fn main() {}
