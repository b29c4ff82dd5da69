//! Images and audio from published clients.

use tests::images::{AROUND_IMAGE, N_EMBD, projector, projector_of, vision_model};

use crate::common::Home;
use crate::serve::{Serving, asked_by};

const TEMPLATE: &str = "{% for m in messages %}<{{ m.role }}>{{ m.content }}{% endfor %}{% if add_generation_prompt %}<assistant>{% endif %}";

#[test]
#[ignore = "installs clients from PyPI and npm: several minutes"]
fn published_clients_send_images_and_audio() {
    let models = [
        (vision_model(Some(TEMPLATE), &AROUND_IMAGE), projector(N_EMBD)),
        (
            tests::text_model("llama", Some(TEMPLATE)),
            projector_of("ultravox", N_EMBD),
        ),
    ];
    for (model, projector) in models {
        let home = Home::new();
        let path = |name: &str| home.path(name).into_os_string().into_string().expect("UTF-8");
        let (model_file, projector_file) = (path("model.gguf"), path("mmproj.gguf"));
        std::fs::write(&model_file, model).expect("writing a model");
        std::fs::write(&projector_file, projector).expect("writing a projector");
        let server = Serving::start(home.llama(&[
            "serve",
            &model_file,
            "--port",
            "0",
            "-c",
            "1024",
            "--temp",
            "0",
            "--ignore-eos",
        ]));
        asked_by("server_clients.py", &["media"], server);
    }
}
