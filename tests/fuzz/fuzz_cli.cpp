#include <fuzzer/FuzzedDataProvider.h>

#include <string>
#include <vector>

#include "tests/fuzz/expect.h"
#include "tools/cli/arguments.h"
#include "tools/cli/event_stream.h"
#include "tools/cli/text.h"

/// okcvm's command line, and what it makes of texts that a daemon or a session could hand to a terminal.
namespace {

using namespace okcvm::cli;

/// Words of which many are verbs, options and values that mean something.
std::vector<std::string> words_of(FuzzedDataProvider& provider) {
  std::vector<std::string> words;
  for (auto count = provider.ConsumeIntegralInRange(0, 8); count > 0; --count) {
    const auto& verb = verbs().at(provider.ConsumeIntegralInRange<std::size_t>(0, verbs().size() - 1));
    switch (provider.ConsumeIntegralInRange(0, 4)) {
      case 0: {
        const std::string name(verb.name);
        const auto space = name.find(' ');
        words.push_back(name.substr(0, space));
        if (space != name.npos && provider.ConsumeBool()) words.push_back(name.substr(space + 1));
        break;
      }
      case 1:
        if (!verb.options.empty()) {
          const auto last = verb.options.size() - 1;
          words.push_back(
              "--" +
              std::string(verb.options.at(provider.ConsumeIntegralInRange<std::size_t>(0, last)).name));
          if (provider.ConsumeBool()) words.back() += "=" + provider.ConsumeRandomLengthString(16);
        }
        break;
      case 2:
        words.push_back(
            provider.PickValueInArray({"--", "-", "--json", "--socket", "--help", "-h", "-n", "7", ""}));
        break;
      default:
        words.push_back(provider.ConsumeRandomLengthString(40));
    }
  }
  return words;
}

void check(const Invocation& found) {
  if (!found.verb) {
    FUZZ_EXPECT(found.has("help"));
    return;
  }
  for (const auto& argument : found.verb->arguments) {
    const auto values = found.all(argument.name);
    FUZZ_EXPECT(argument.repeated || values.size() <= 1);
    FUZZ_EXPECT(argument.optional || found.has("help") || !values.empty());
  }
  const auto is_known = [&](const std::string& name) {
    for (const auto* options : {&found.verb->options, &common_options()})
      for (const auto& option : *options)
        if (option.name == name) return true;
    return false;
  };
  for (const auto& [name, values] : found.options) FUZZ_EXPECT(is_known(name) && !values.empty());
  for (const auto& option : found.verb->options)
    if (option.kind == Kind::kNumber)
      for (const auto& value : found.each(option.name)) FUZZ_EXPECT(std::stol(value) >= 0);
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  FuzzedDataProvider provider(data, size);
  const auto found = parse_arguments(words_of(provider));
  if (found)
    check(*found);
  else
    FUZZ_EXPECT(found.error().status == kUsage && found.error().code == "invalid_request" &&
                !found.error().message.empty());

  const auto text = provider.ConsumeRandomLengthString(200);
  for (const char c : visible(text)) FUZZ_EXPECT(static_cast<unsigned char>(c) >= ' ' && c != 0x7f);
  age(text, 0);
  local_time(text);
  Table table({"A", ">B"});
  table.row({text, text});
  FUZZ_EXPECT(table.text().ends_with('\n'));
  std::size_t events = 0;
  EventStream stream([&](const std::string&) -> Outcome<void> {
    ++events;
    return {};
  });
  while (provider.remaining_bytes() > 0) FUZZ_EXPECT(stream.take(provider.ConsumeRandomLengthString(64)));
  return 0;
}
