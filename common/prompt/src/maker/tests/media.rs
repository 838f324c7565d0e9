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
        maker.begin_chat(&chat).expect_err("nothing is rendered").to_string()
    };
    assert!(error(100).contains("rendered"), "{}", error(100));
    assert_eq!(error(10_000), "messages: a prompt may have 100 images and audio files");
}
