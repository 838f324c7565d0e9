//! Media that are too many: they are refused before they cost anything.

use warmpath_common::media::{MediaLayout, MediaSize};
use warmpath_common::model::{MediaReading, Modalities};

use super::*;

/// A reader of images that knows no layout.
#[derive(Debug)]
struct Blind;

impl MediaReader for Blind {
    fn reading(&self) -> MediaReading {
        MediaReading { modalities: Modalities { vision: true, audio: false }, fingerprint: Fingerprint([0; 32]) }
    }

    fn layout(&self, _: MediaSize) -> Option<Arc<MediaLayout>> {
        None
    }
}

#[test]
fn too_many_media_are_refused_before_the_template_is_rendered() {
    let maker = open("gpt-2", "{{ raise_exception('rendered') }}").with_media(Arc::new(Blind));
    let error = |n: usize| {
        let part = json!({"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}});
        let chat = request(json!({"messages": [{"role": "user", "content": vec![part; n]}]}));
        maker.prepare_chat(&chat).expect_err("nothing is rendered").to_string()
    };
    assert!(error(100).contains("messages[0]: an image must be a PNG"), "{}", error(100));
    assert_eq!(error(10_000), "messages: a prompt may have 100 images and audio files");
}

/// A PNG of one pixel.
const PNG: &str = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg==";

#[test]
fn media_of_a_history_that_are_not_read_or_not_shown_are_named() {
    let template = "{% for m in messages if m.role != 'critic' %}{{ m.content }};{% endfor %}";
    let maker = open("gpt-2", template).with_media(Arc::new(Blind));
    let say = |role: &str, data: &str| {
        let part = json!({"type": "image_url", "image_url": {"url": format!("data:image/png;base64,{data}")}});
        json!({"role": role, "content": [{"type": "text", "text": "a"}, part]})
    };
    let asks = json!({"role": "user", "content": "c"});
    let chat = |message: Json| {
        let chat = request(json!({"messages": [message, {"role": "assistant", "content": "b"}, asks]}));
        let prompt = maker.chat(&chat).unwrap();
        assert_eq!(maker.render(&chat).unwrap(), prompt.text);
        (prompt.text, prompt.left_out_parts)
    };
    let text = "a\n[image: this model cannot read it];b;c;".to_owned();
    assert_eq!(chat(say("user", "AAAA")), (text, vec!["image"]));
    assert_eq!(chat(say("critic", PNG)), ("b;c;".to_owned(), vec!["image"]));
    assert_eq!(chat(asks.clone()), ("c;b;c;".to_owned(), Vec::new()));
    let shown = maker.render(&request(json!({"messages": [say("user", PNG)]}))).unwrap();
    assert_eq!(shown, "a<__media__>;");
    let error = maker.render(&request(json!({"messages": [asks, say("user", "AAAA")]}))).unwrap_err();
    assert!(error.to_string().contains("messages[1]: an image must be a PNG"), "{error}");
}
