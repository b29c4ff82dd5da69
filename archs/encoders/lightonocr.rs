//! LightOnOCR: Pixtral without a token between the rows of an image.

arch_macros::encoder! {
    name: "lightonocr";
    like: "pixtral";

    image {
        size: longest(image_size, patch_size * merge);
        resize: bicubic;
        patches: patch_size in blocks(merge);
    }

    text { "<|im_start|>", image, "<|im_end|>" }
}
