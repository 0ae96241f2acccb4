// What a server answers, and refuses.

#include "tests/tools/server_fixture.h"

namespace okcvm::daemon {
namespace {

TEST_F(ServerTest, AnswersManyRequestsOnOneConnection) {
  HttpClient client(path_);
  for (int i = 0; i < 50; ++i)
    EXPECT_EQ(client.ask("POST", "/a", std::to_string(i)).body, "/a|" + std::to_string(i));
  EXPECT_EQ(client.ask("GET", "/refuse").code(), "forbidden");
  EXPECT_EQ(client.ask("GET", "/after").body, "/after|");
}

TEST_F(ServerTest, AnswersPipelinedRequestsInOrder) {
  HttpClient client(path_);
  std::string requests;
  for (int i = 0; i < 20; ++i) requests += "GET /" + std::to_string(i) + " HTTP/1.1\r\n\r\n";
  client.send(requests);
  for (int i = 0; i < 20; ++i) EXPECT_EQ(client.receive().body, "/" + std::to_string(i) + "|");
}

TEST_F(ServerTest, AnswersAClientThatHasEndedSending) {
  HttpClient client(path_);
  client.send("GET /half HTTP/1.1\r\n\r\n");
  client.end_sending();
  EXPECT_EQ(client.receive().body, "/half|");
  EXPECT_TRUE(client.is_closed_within(5));
}

TEST_F(ServerTest, AnswersHeadWithoutABody) {
  HttpClient client(path_);
  const auto answer = client.ask("HEAD", "/file");
  EXPECT_EQ(answer.status, 200);
  EXPECT_EQ(answer.headers.at("content-length"), "999990");
  EXPECT_EQ(client.ask("GET", "/next").body, "/next|");
}

TEST_F(ServerTest, RefusesGarbage) {
  for (const std::string& bytes :
       {std::string("\x16\x03\x01\x02\x00\x01\x00\x01\xfc\r\n\r\n"), std::string("hello\r\n\r\n"),
        std::string("GET /\r\n\r\n"), std::string("GET / HTTP/9.9\r\n\r\n"),
        std::string("GET /a b HTTP/1.1\r\n\r\n"), std::string("GET / HTTP/1.1\r\nno colon\r\n\r\n"),
        std::string("POST / HTTP/1.1\r\nContent-Length: -1\r\n\r\n"),
        std::string("POST / HTTP/1.1\r\nContent-Length: 99999999999999999999999\r\n\r\n"),
        std::string("POST / HTTP/1.1\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\n"),
        std::string("GET / HTTP/1.1\r\nA: b\0c\r\n\r\n", 26)}) {
    const auto answer = raw(bytes);
    EXPECT_EQ(answer.status, 400) << bytes;
    EXPECT_EQ(answer.code(), "invalid_request") << bytes;
    EXPECT_EQ(answer.headers.at("connection"), "close");
  }
}

TEST_F(ServerTest, LogsWhyARequestFailed) {
  ::testing::internal::CaptureStderr();
  auto answer = raw("GET /fail HTTP/1.1\r\n\r\n");
  const auto log = ::testing::internal::GetCapturedStderr();
  EXPECT_EQ(answer.status, 500);
  EXPECT_NE(log.find("request " + answer.headers["x-request-id"] +
                     ": {\"error\":{\"code\":\"internal\",\"message\":\"it\\nbroke\""),
            log.npos)
      << log;
}

TEST_F(ServerTest, RefusesAnAddressThatIsNone) {
  EXPECT_EQ(raw("GET * HTTP/1.1\r\n\r\n").status, 400);
  EXPECT_EQ(raw("GET /?a=%zz HTTP/1.1\r\n\r\n").status, 400);
  EXPECT_EQ(raw("GET /?a=%00 HTTP/1.1\r\n\r\n").status, 400);
  EXPECT_EQ(raw("GET /?a=1&a=2 HTTP/1.1\r\n\r\n").status, 400);
  EXPECT_EQ(raw("GET http://okcvm/x HTTP/1.1\r\n\r\n").body, "/x|");
  EXPECT_EQ(raw("GET HTTP://okcvm/x HTTP/1.1\r\n\r\n").body, "/x|");
  EXPECT_EQ(raw("GET http://okcvm?a=/x HTTP/1.1\r\n\r\n").status, 400);
  EXPECT_EQ(raw("GET /report#draft HTTP/1.1\r\n\r\n").status, 400);  // no request for /report
}

TEST_F(ServerTest, RefusesAHeaderThatIsTooLarge) {
  EXPECT_EQ(raw("GET / HTTP/1.1\r\nA: " + std::string(20'000, 'a') + "\r\n\r\n").status, 431);
  EXPECT_EQ(raw("GET /" + std::string(20'000, 'a') + " HTTP/1.1\r\n\r\n").status, 431);
  EXPECT_EQ(raw("GET / HTTP/1.1\r\nA: " + std::string(15'000, 'a') + "\r\n\r\n").status, 200);
  std::string many = "GET / HTTP/1.1\r\n";
  for (int i = 0; i < 1'000; ++i) many += "A: b\r\n";
  EXPECT_EQ(raw(many + "\r\n").status, 200);
  HttpClient client(path_);
  for (int i = 0; i < 5; ++i) client.send(many.substr(i == 0 ? 0 : 16));
  EXPECT_EQ(client.receive().status, 431);
}

TEST_F(ServerTest, RefusesABodyThatIsTooLarge) {
  EXPECT_EQ(raw("POST / HTTP/1.1\r\nContent-Length: 1048577\r\n\r\n").status, 413);
  HttpClient client(path_);
  client.send("POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n");
  const std::string chunk = "10000\r\n" + std::string(65536, 'a') + "\r\n";
  for (int i = 0; i < 17; ++i) client.send(chunk);
  EXPECT_EQ(client.receive().status, 413);
  HttpClient whole(path_);
  EXPECT_EQ(whole.ask("POST", "/", std::string(1024 * 1024, 'a')).body.size(), 1024u * 1024 + 2);
}

TEST_F(ServerTest, RefusesCodingsThatItDoesNotKnow) {
  for (const char* coding : {"gzip", "identity", "gzip, chunked"}) {
    HttpClient client(path_);
    client.send(std::string("PUT /count HTTP/1.1\r\nHost: okcvm\r\nTransfer-Encoding: ") + coding +
                "\r\n\r\nhalf of a");
    client.end_sending();
    EXPECT_EQ(client.receive().status, 501) << coding;
  }
}

TEST_F(ServerTest, ReadsNoRequestOutOfABodyOfUnknownLength) {
  for (const char* coding : {"gzip", "identity", "chunked, identity"}) {
    HttpClient client(path_);
    client.send(std::string("PUT /count HTTP/1.1\r\nTransfer-Encoding: ") + coding +
                "\r\n\r\nGET / HTTP/1.1\r\n\r\n");
    auto answer = client.receive();
    EXPECT_EQ(answer.status, 501) << coding;
    EXPECT_EQ(answer.headers["connection"], "close") << coding;
    EXPECT_EQ(client.receive().status, 0) << coding;
  }
}

TEST_F(ServerTest, RefusesARequestForTwoHosts) {
  HttpClient client(path_);
  client.send("GET / HTTP/1.1\r\nHost: a\r\nHost: b\r\n\r\nGET / HTTP/1.1\r\nHost: a\r\n\r\n");
  auto answer = client.receive();
  EXPECT_EQ(answer.status, 400);
  EXPECT_EQ(answer.headers["connection"], "close");
  EXPECT_EQ(client.receive().status, 0);
}

TEST_F(ServerTest, RefusesTrailersThatAreTooLarge) {
  std::string many;
  for (int i = 0; i < 5'000; ++i) many += "A: b\r\n";
  for (const std::string path : {"/", "/count"}) {
    HttpClient client(path_);
    client.send("POST " + path + " HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n1\r\na\r\n0\r\n" + many +
                "\r\n");
    EXPECT_EQ(client.receive().status, 431) << path;
    HttpClient sober(path_);
    sober.send("POST " + path + " HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n1\r\na\r\n0\r\nA: b\r\n\r\n");
    EXPECT_EQ(sober.receive().status, 200) << path;
  }
}

TEST_F(ServerTest, StreamsBodiesOfAnySize) {
  HttpClient client(path_);
  EXPECT_EQ(client.ask("PUT", "/count", std::string(5'000'000, 'a')).body, "5000000");
  client.send("PUT /count HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n");
  for (int i = 0; i < 300; ++i) client.send("2710\r\n" + std::string(10'000, 'b') + "\r\n");
  client.send("0\r\n\r\n");
  EXPECT_EQ(client.receive().body, "3000000");
  EXPECT_EQ(client.ask("PUT", "/count", "").body, "0");
}

TEST_F(ServerTest, TellsWhyABodyWasNotTaken) {
  HttpClient client(path_);
  client.send("PUT /count HTTP/1.1\r\nContent-Length: 10000000\r\n\r\nx");
  const auto answer = client.receive();
  EXPECT_EQ(answer.status, 507);
  EXPECT_EQ(answer.code(), "no_space");
}

TEST_F(ServerTest, LetsAClientContinue) {
  HttpClient client(path_);
  client.send("PUT /count HTTP/1.1\r\nContent-Length: 4\r\nExpect: 100-continue\r\n\r\n");
  EXPECT_EQ(client.receive_until("\r\n\r\n"), "HTTP/1.1 100 Continue\r\n\r\n");
  client.send("abcd");
  EXPECT_EQ(client.receive().body, "4");
}

TEST_F(ServerTest, AsksForNoBodyThatItDoesNotTake) {
  for (const char* framing : {"Content-Length: 4", "Transfer-Encoding: chunked"}) {
    HttpClient client(path_);
    client.send("PUT /count-nothing HTTP/1.1\r\nExpect: 100-continue\r\n" + std::string(framing) +
                "\r\n\r\n");
    EXPECT_EQ(client.receive().status, 403) << framing;
    EXPECT_TRUE(client.is_closed_within(10)) << framing << ": nobody knows whether the body comes";
  }
  HttpClient client(path_);
  for (int i = 0; i < 2; ++i)
    EXPECT_EQ(client.ask("PUT", "/count", "", {{"Expect", "100-continue"}}).body, "0") << "there is none";
}

TEST_F(ServerTest, SendsAPartOfAFile) {
  HttpClient client(path_);
  EXPECT_EQ(client.ask("GET", "/file").body, std::string(999'990, 'f'));
}

TEST_F(ServerTest, ShowsProgressToWhoAsksForIt) {
  HttpClient client(path_);
  EXPECT_EQ(client.ask("POST", "/work", "", {{"Accept", "application/x-ndjson"}}).body,
            "{\"progress\":{\"phase\":\"read\",\"done\":1,\"total\":2}}\n{\"result\":{\"done\":true}}\n");
  EXPECT_EQ(client.ask("POST", "/work").body, "{\"done\":true}\n");
}

}  // namespace
}  // namespace okcvm::daemon
