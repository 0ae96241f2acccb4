#include "tools/daemon/routes/exposition.h"

#include <array>
#include <charconv>

namespace okcvm::daemon {

std::string number_text(double value) {
  std::array<char, 32> text{};
  const auto end = std::to_chars(text.data(), text.data() + text.size(), value).ptr;
  return std::string(text.data(), end);
}

void Exposition::metric(std::string_view name, std::string_view type, std::string_view help) {
  name_ = name;
  out_ << "# HELP " << name << " " << help << "\n# TYPE " << name << " " << type << "\n";
}

void Exposition::name_of_sample(Labels labels, std::string_view suffix, std::string_view bound) {
  out_ << name_ << suffix;
  char before = '{';
  for (const auto& [name, value] : labels) {
    out_ << before << name << "=\"" << value << "\"";
    before = ',';
  }
  if (!bound.empty()) {
    out_ << before << "le=\"" << bound << "\"";
    before = ',';
  }
  out_ << (before == ',' ? "} " : " ");
}

void Exposition::sample(std::uint64_t value, Labels labels, std::string_view suffix) {
  name_of_sample(labels, suffix);
  out_ << value << "\n";
}

void Exposition::sample(double value, Labels labels, std::string_view suffix) {
  name_of_sample(labels, suffix);
  out_ << number_text(value) << "\n";
}

void Exposition::times(const TimeHistogram& times, Labels labels) {
  for (std::size_t i = 0; i < TimeHistogram::kBounds.size(); ++i) {
    name_of_sample(labels, "_bucket", number_text(TimeHistogram::kBounds[i]));
    out_ << times.within[i] << "\n";
  }
  name_of_sample(labels, "_bucket", "+Inf");
  out_ << times.count << "\n";
  sample(times.seconds, labels, "_sum");
  sample(times.count, labels, "_count");
}

void Exposition::gauge(std::string_view name, std::uint64_t value, std::string_view help) {
  metric(name, "gauge", help);
  sample(value);
}

void Exposition::counter(std::string_view name, std::uint64_t value, std::string_view help) {
  metric(name, "counter", help);
  sample(value);
}

}  // namespace okcvm::daemon
