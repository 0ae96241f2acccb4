#pragma once

#include <cstdint>
#include <map>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

namespace okcvm::bench {

/// Times of one row by contestant, one a round, in the order of the rounds.
struct Measured {
  std::string row;
  double target = 0;
  std::map<std::string, std::vector<double>> seconds;
  std::map<std::string, std::uint64_t> requests;  // okcvm's, of the first round, by opcode
};

/// The median over the rounds of (contestant's time / native's time in the same round).
double median_ratio(const Measured& measured, const std::string& contestant);
double median(std::vector<double> values);

/// A Markdown table of ratios to native; a ratio over its target is marked.
std::string as_markdown(const std::vector<Measured>& table, const std::vector<std::string>& contestants);
/// Requests by row and opcode, as Markdown.
std::string requests_as_markdown(const std::vector<Measured>& table);
nlohmann::json as_json(const std::vector<Measured>& table, const std::vector<std::string>& contestants);

}  // namespace okcvm::bench
