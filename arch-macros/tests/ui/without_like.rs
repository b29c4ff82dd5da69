//! `without` removes items although nothing is inherited.

arch_macros::arch! {
    name: "tiny";
    rope: norm;

    hparams {
        without eps;
    }
}

fn main() {}
