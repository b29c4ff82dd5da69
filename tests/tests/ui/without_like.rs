//! Leaves out what nothing was inherited of.

arch_macros::arch! {
    name: "tiny";
    rope: norm;

    hparams {
        without eps;
    }
}

fn main() {}
