// Hidden states of the last layer, which llama.cpp's C interface does not tell.
//
// Not here: what reads them.

#include "llama-ext.h"

#include <cstdint>

// Chooses the tokens of further batches whose hidden states are written: none, those with logits, or all.
extern "C" void wp_write_hidden(llama_context * context, int32_t tokens) {
    llama_set_embeddings_nextn(context, tokens != 0, tokens == 1);
}

// Returns the hidden state of the batch's token at idx; null if it was not written. It is valid until the next batch.
extern "C" const float * wp_hidden(llama_context * context, int32_t idx) {
    return llama_get_embeddings_nextn_ith(context, idx);
}
