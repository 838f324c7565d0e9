// Thin C functions over llama.cpp's chat formats (common/chat.h): JSON texts in, JSON texts out.
//
// Not here: decisions. Every exception becomes an error text; every text that is returned is freed by wp_text_free.

#include "chat.h"
#include "common.h"
#include "json.h"
#include "log.h"

#include <cstdlib>
#include <cstring>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

namespace {

// Parts of a format that a reader needs; shared by all readers of the format.
struct format_state {
    common_chat_parser_params params;
    common_peg_arena          arena;
};

char * copy_text(const std::string & text) {
    char * copy = static_cast<char *>(std::malloc(text.size() + 1));
    if (copy) {
        std::memcpy(copy, text.c_str(), text.size() + 1);
    }
    return copy;
}

// Runs work; returns 0, or 1 with the reason in *error.
template <typename Work> int guarded(char ** error, Work && work) {
    try {
        work();
        return 0;
    } catch (const std::exception & e) {
        *error = copy_text(e.what());
    } catch (...) {
        *error = copy_text("an unknown exception");
    }
    return 1;
}

// llama.cpp logs output that it cannot parse; texts of users and answers must not be logged.
void silence_once() {
    static std::once_flag silenced;
    std::call_once(silenced, [] { common_log_set_verbosity_thold(-1); });
}

common_json describe(const common_chat_params & params) {
    common_json triggers = common_json::array();
    for (const auto & trigger : params.grammar_triggers) {
        common_json one;
        one["kind"]  = static_cast<int>(trigger.type);
        one["value"] = trigger.value;
        triggers.push_back(one);
    }
    common_json all;
    all["prompt"]            = params.prompt;
    all["grammar"]           = params.grammar;
    all["grammar_lazy"]      = params.grammar_lazy;
    all["triggers"]          = triggers;
    all["generation_prompt"] = params.generation_prompt;
    all["supports_thinking"] = params.supports_thinking;
    all["thinking_start"]    = params.thinking_start_tag;
    all["thinking_ends"]     = common_json(params.thinking_end_tags);
    all["preserved_tokens"]  = common_json(params.preserved_tokens);
    all["stops"]             = common_json(params.additional_stops);
    return all;
}

common_chat_templates_inputs read_inputs(const std::string & text) {
    const common_json            body = common_json::parse(text);
    common_chat_templates_inputs inputs;
    inputs.messages            = common_chat_msgs_parse_oaicompat(body.at("messages"));
    inputs.tools               = common_chat_tools_parse_oaicompat(body.at("tools"));
    inputs.tool_choice         = common_chat_tool_choice_parse_oaicompat(body.at("tool_choice").get<std::string>());
    inputs.parallel_tool_calls = body.at("parallel_tool_calls").get<bool>();
    inputs.reasoning_format    = common_reasoning_format_from_name(body.at("reasoning_format").get<std::string>());
    inputs.enable_thinking     = body.at("enable_thinking").get<bool>();
    if (body.at("continues").get<bool>()) {
        inputs.continue_final_message = COMMON_CHAT_CONTINUATION_AUTO;
        inputs.add_generation_prompt  = false;
    }
    for (const auto & [name, value] : body.at("kwargs").items()) {
        inputs.chat_template_kwargs[name] = value.dump();
    }
    return inputs;
}

// Parser of one answer, with the message that it has returned so far.
struct reader_state {
    std::shared_ptr<format_state> format;
    common_chat_parser_params     params;
    common_chat_msg               told;
    std::vector<std::string>      ids;
};

// Returns the part of `now` after `told`; empty if `now` does not begin with `told`.
std::string more(std::string & told, const std::string & now) {
    if (now.size() <= told.size() || now.compare(0, told.size(), told) != 0) {
        return "";
    }
    std::string rest = now.substr(told.size());
    told             = now;
    return rest;
}

common_json tell(reader_state & reader, const common_chat_msg & now, bool is_partial) {
    common_json delta;
    delta["reasoning"] = more(reader.told.reasoning_content, now.reasoning_content);
    delta["content"]   = more(reader.told.content, now.content);
    common_json calls  = common_json::array();
    for (size_t idx = 0; idx < now.tool_calls.size(); idx++) {
        const auto & call     = now.tool_calls[idx];
        const bool   is_known = idx < reader.told.tool_calls.size();
        // A name may still grow until something follows it.
        const bool is_named = !call.name.empty() && (!is_partial || !call.arguments.empty() || idx + 1 < now.tool_calls.size());
        if (!is_known && (!is_named || idx != reader.told.tool_calls.size())) {
            break;
        }
        common_json one;
        one["index"] = idx;
        if (!is_known) {
            reader.told.tool_calls.push_back({ call.name, "", call.id });
            one["id"]   = call.id;
            one["name"] = call.name;
        }
        one["arguments"] = more(reader.told.tool_calls[idx].arguments, call.arguments);
        if (!is_known || !one["arguments"].get<std::string>().empty()) {
            calls.push_back(one);
        }
    }
    delta["tool_calls"] = calls;
    return delta;
}

}  // namespace

extern "C" {

void wp_text_free(char * text) { std::free(text); }

// Compiles a chat template.
int wp_templates_new(const char * source, const char * bos, const char * eos, void ** templates, char ** error) {
    silence_once();
    return guarded(error, [&] { *templates = common_chat_templates_init(nullptr, source, bos, eos).release(); });
}

void wp_templates_free(void * templates) { common_chat_templates_free(static_cast<common_chat_templates *>(templates)); }

// Returns the capabilities of the template.
int wp_templates_caps(const void * templates, char ** caps, char ** error) {
    return guarded(error, [&] {
        common_json all = common_json::object();
        for (const auto & [name, value] : common_chat_templates_get_caps(static_cast<const common_chat_templates *>(templates))) {
            all[name] = value;
        }
        *caps = copy_text(all.dump());
    });
}

// Determines the format of the answer to a request.
int wp_format_new(const void * templates, const char * inputs, void ** format, char ** description, char ** error) {
    return guarded(error, [&] {
        const auto read   = read_inputs(inputs);
        const auto params = common_chat_templates_apply(static_cast<const common_chat_templates *>(templates), read);
        auto       state  = std::make_shared<format_state>();
        state->params                  = common_chat_parser_params(params);
        state->params.reasoning_format = read.reasoning_format;
        if (!params.parser.empty()) {
            state->arena.load(params.parser);
        }
        const std::string text = describe(params).dump();
        *description           = copy_text(text);
        *format                = new std::shared_ptr<format_state>(std::move(state));
    });
}

void wp_format_free(void * format) { delete static_cast<std::shared_ptr<format_state> *>(format); }

// Creates a parser of an answer that follows `prefix`, the end of its prompt.
int wp_reader_new(const void * format, const char * prefix, size_t prefix_len, void ** reader, char ** error) {
    return guarded(error, [&] {
        auto state                      = std::make_unique<reader_state>();
        state->format                   = *static_cast<const std::shared_ptr<format_state> *>(format);
        state->params                   = state->format->params;
        state->params.generation_prompt = std::string(prefix, prefix_len);
        *reader                         = state.release();
    });
}

void wp_reader_free(void * reader) { delete static_cast<reader_state *>(reader); }

// Parses the answer so far, whose calls get the ids in `ids` in order, and returns the new parts.
int wp_reader_read(void * reader, const char * text, size_t text_len, int is_partial, const char * fresh_id, char ** delta,
                   char ** error) {
    return guarded(error, [&] {
        auto & state = *static_cast<reader_state *>(reader);
        auto   now   = common_chat_peg_parse(state.format->arena, std::string(text, text_len), is_partial != 0, state.params);
        now.set_tool_call_ids(state.ids, [&] { return std::string(fresh_id) + std::to_string(state.ids.size()); });
        *delta = copy_text(tell(state, now, is_partial != 0).dump());
    });
}

// Counts the beginning of the answer, which the prompt contains already, as returned.
int wp_reader_skip(void * reader, char ** error) {
    return guarded(error, [&] {
        auto & state = *static_cast<reader_state *>(reader);
        state.told   = common_chat_peg_parse(state.format->arena, "", true, state.params);
    });
}

}  // extern "C"
