//! Tests of the engine's configuration.

use super::*;

fn check(config: &EngineConfig, expected: Option<&str>) {
    let refusal = config.validate().err().map(|error| error.to_string());
    match expected {
        None => assert_eq!(refusal, None),
        Some(words) => assert!(refusal.as_deref().is_some_and(|text| text.contains(words)), "{refusal:?}"),
    }
}

#[test]
fn refuses_sizes_that_contradict_each_other() {
    let base = EngineConfig::default();
    check(&base, None);
    check(&EngineConfig { n_slots: 0, ..base.clone() }, Some("slots"));
    check(&EngineConfig { n_slots: 257, ..base.clone() }, Some("slots"));
    check(&EngineConfig { block_size_tokens: 0, ..base.clone() }, Some("block size"));
    check(&EngineConfig { n_slots: 8, ubatch_tokens: 8, ..base.clone() }, Some("micro-batch"));
    check(&EngineConfig { batch_tokens: 256, ..base.clone() }, Some("batch"));
    let quantized = EngineConfig { cache_type_v: CacheType::Q8_0, ..base };
    check(&quantized, None);
    assert!(quantized.uses_flash_attn());
    check(&EngineConfig { flash_attn: Switch::Off, ..quantized }, Some("flash attention"));
}
