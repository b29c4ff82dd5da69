//! Jina Embeddings 3 (XLM-RoBERTa): the graph of BERT with rotary instead of learned positions.

arch_macros::arch! {
    name: "jina-bert-v3";
    like: "bert";
    rope: neox;

    tensors {
        without position_embd;
    }

    fn embeddings() { token_embd[tokens] }

    fn attention_block(x) { attend(x) }
}
