/* A load generator: N connections that each ask one request after the other and compare every body.
 *
 *     cc -O2 -Wall -o load bench/load.c -lssl -lcrypto
 *     load --mode MODE --to HOST:PORT[,HOST:PORT] --list FILE [--connections 8] [--seconds 2] [--warm 0.5]
 *          [--ca PEM] [--fields browser|minimal] [--fresh] [--resume]
 *
 * MODE: direct   origin form, plain           proxy  absolute form, plain
 *       connect  CONNECT, then TLS inside     tls    TLS at once, host by SNI
 * FILE: lines of "URL<tab>FILE WITH ITS BODY". Every answer must be a 200 with exactly that body (memcmp, which
 * costs less than any checksum), sized by Content-Length or chunked.
 * --fresh: a new connection for every request; --resume: with the TLS session of the one before.
 * Prints one JSON object. One thread, epoll, no allocation while it runs but for latencies.
 */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <netdb.h>
#include <netinet/tcp.h>
#include <openssl/err.h>
#include <openssl/ssl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

enum mode { DIRECT, PROXY, CONNECT_TLS, TLS };
enum state { DOWN, CONNECTING, TUNNELLING, SHAKING, ASKING, READING };

struct item { char *host, *request; size_t request_size; char *body; size_t body_size; };
struct conn {
    int fd, target; enum state state; SSL *ssl; SSL_SESSION *session;
    size_t next, written, filled; double began; const char *out; size_t out_size;
    char tunnel[600]; char *in; int used;
};

static const char *BROWSER =
    "sec-ch-ua: \"Chromium\";v=\"156\", \"Not_A Brand\";v=\"24\"\r\nsec-ch-ua-mobile: ?0\r\n"
    "sec-ch-ua-platform: \"Linux\"\r\nUpgrade-Insecure-Requests: 1\r\n"
    "User-Agent: Mozilla/5.0 (X11; Linux x86_64) AppleWebKit/537.36 (KHTML, like Gecko) Chrome/156.0.0.0 "
    "Safari/537.36\r\nAccept: text/html,application/xhtml+xml,application/xml;q=0.9,image/avif,image/webp,"
    "*/*;q=0.8\r\nSec-Fetch-Site: none\r\nSec-Fetch-Mode: navigate\r\nSec-Fetch-User: ?1\r\n"
    "Sec-Fetch-Dest: document\r\nAccept-Encoding: gzip, deflate, br, zstd\r\nAccept-Language: en-US,en;q=0.9\r\n";
static const char *MINIMAL = "Accept: */*\r\nAccept-Encoding: gzip, br\r\n";

static enum mode mode;
static int fresh, resume, items_count, targets_count, epfd;
static struct item *items;
static struct sockaddr_in targets[8];
static SSL_CTX *tls;
static size_t in_size = 65536;
static float *latencies; static size_t latencies_count, latencies_room;
static long errors, wrong, reconnects, answer_bytes, answers; static int counting; static char first_error[300];

static double now(void) {
    struct timespec t; clock_gettime(CLOCK_MONOTONIC, &t); return t.tv_sec + t.tv_nsec / 1e9;
}
static void die(const char *what) { fprintf(stderr, "load: %s\n", what); exit(2); }

static void error_of(struct conn *c, const char *what) {
    errors++;
    if (!first_error[0]) snprintf(first_error, sizeof first_error, "%s (state %d, errno %d)", what, c->state, errno);
    ERR_clear_error();
}

static char *slurp(const char *path, size_t *size) {
    FILE *f = fopen(path, "rb"); if (!f) die(path);
    fseek(f, 0, SEEK_END); *size = ftell(f); rewind(f);
    char *text = malloc(*size + 1);
    if (fread(text, 1, *size, f) != *size) die(path);
    text[*size] = 0; fclose(f); return text;
}

static void read_list(const char *path, const char *fields) {
    size_t size; char *text = slurp(path, &size), *rest = NULL;
    for (char *line = strtok_r(text, "\n", &rest); line; line = strtok_r(NULL, "\n", &rest)) {
        char *tab = strchr(line, '\t'); if (!tab) die("a line without a tab");
        *tab = 0;
        char *host = strstr(line, "://"); if (!host) die(line);
        host += 3;
        char *path_at = strchr(host, '/'); if (!path_at) die(line);
        items = realloc(items, (items_count + 1) * sizeof *items);
        struct item *it = &items[items_count++];
        it->host = strndup(host, path_at - host);
        it->body = slurp(tab + 1, &it->body_size);
        if (it->body_size * 2 + 65536 > in_size) in_size = it->body_size * 2 + 65536;
        it->request_size = asprintf(&it->request, "GET %s HTTP/1.1\r\nHost: %s\r\n%sConnection: keep-alive\r\n%s\r\n",
            mode == PROXY ? line : path_at, it->host, mode == PROXY ? "Proxy-Connection: keep-alive\r\n" : "", fields);
    }
    if (!items_count) die("an empty list");
}

static void watch(struct conn *c, uint32_t events, int op) {
    struct epoll_event e = {.events = events, .data.ptr = c};
    if (epoll_ctl(epfd, op, c->fd, &e)) die("epoll_ctl");
}

static void down(struct conn *c) {
    if (c->ssl) {
        if (resume) { SSL_SESSION_free(c->session); c->session = SSL_get1_session(c->ssl); }
        SSL_set_quiet_shutdown(c->ssl, 1); SSL_shutdown(c->ssl); SSL_free(c->ssl); c->ssl = NULL;
    }
    if (c->state != DOWN) close(c->fd);
    c->state = DOWN;
}

static void ask(struct conn *c);

static void up(struct conn *c) {
    down(c);
    c->fd = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK, 0);
    int one = 1; setsockopt(c->fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
    struct sockaddr_in *to = &targets[c->target];
    c->began = now(); c->used = 0; c->filled = 0; c->state = CONNECTING;
    if (connect(c->fd, (struct sockaddr *)to, sizeof *to) && errno != EINPROGRESS) die("connect");
    watch(c, EPOLLOUT, EPOLL_CTL_ADD);
}

static void shake(struct conn *c) {
    if (!c->ssl) {
        c->ssl = SSL_new(tls); SSL_set_fd(c->ssl, c->fd);
        SSL_set_tlsext_host_name(c->ssl, items[c->next].host); SSL_set1_host(c->ssl, items[c->next].host);
        if (resume && c->session) SSL_set_session(c->ssl, c->session);
        c->state = SHAKING;
    }
    int r = SSL_connect(c->ssl);
    if (r == 1) return ask(c);
    int why = SSL_get_error(c->ssl, r);
    if (why == SSL_ERROR_WANT_READ) return watch(c, EPOLLIN, EPOLL_CTL_MOD);
    if (why == SSL_ERROR_WANT_WRITE) return watch(c, EPOLLOUT, EPOLL_CTL_MOD);
    error_of(c, ERR_reason_error_string(ERR_peek_error())); up(c);
}

static void push(struct conn *c) {
    while (c->written < c->out_size) {
        ssize_t n = c->ssl ? SSL_write(c->ssl, c->out + c->written, c->out_size - c->written)
                           : send(c->fd, c->out + c->written, c->out_size - c->written, MSG_NOSIGNAL);
        if (n <= 0) {
            if (!c->ssl && errno == EAGAIN) return watch(c, EPOLLOUT, EPOLL_CTL_MOD);
            error_of(c, "write failed"); return up(c);
        }
        c->written += n;
    }
}

static void ask(struct conn *c) {
    struct item *it = &items[c->next];
    if (c->used++) c->began = now(); /* the first answer of a fresh connection pays for connecting */
    c->out = it->request; c->out_size = it->request_size; c->written = 0; c->filled = 0;
    c->state = READING; watch(c, EPOLLIN, EPOLL_CTL_MOD); push(c);
}

static void connected(struct conn *c) {
    int why = 0; socklen_t size = sizeof why; getsockopt(c->fd, SOL_SOCKET, SO_ERROR, &why, &size);
    if (why) { errno = why; error_of(c, "cannot connect"); return up(c); }
    if (mode == TLS) return shake(c);
    if (mode != CONNECT_TLS) return ask(c);
    char *host = items[c->next].host;
    const char *port = strchr(host, ':') ? "" : ":443";
    c->out_size = snprintf(c->tunnel, sizeof c->tunnel, "CONNECT %s%s HTTP/1.1\r\nHost: %s%s\r\n\r\n", host, port, host, port);
    c->out = c->tunnel; c->written = 0; c->state = TUNNELLING;
    watch(c, EPOLLIN, EPOLL_CTL_MOD); push(c);
}

/* Returns the size of the whole answer, 0 if more is to come, -1 if it cannot be read; unchunks in place. */
static ssize_t whole(struct conn *c, char **body, size_t *body_size, int *stays) {
    c->in[c->filled] = 0;
    char *end = memmem(c->in, c->filled, "\r\n\r\n", 4);
    if (!end) return 0;
    *end = 0;
    *stays = !strcasestr(c->in, "\r\nconnection: close") && !strcasestr(c->in, "\r\nproxy-connection: close");
    char *length = strcasestr(c->in, "\r\ncontent-length:");
    int chunked = strcasestr(c->in, "\r\ntransfer-encoding: chunked") != NULL;
    *end = '\r'; end += 4; *body = end;
    size_t have = c->filled - (end - c->in);
    if (!chunked) {
        if (!length) return -1;
        *body_size = strtoul(length + 17, NULL, 10);
        return have >= *body_size ? (end - c->in) + (ssize_t)*body_size : 0;
    }
    char *at = end, *last = c->in + c->filled; *body_size = 0;
    for (int pass = 0; pass < 2; pass++, at = end) for (char *to = end;;) { /* first look, then move */
        char *line = memmem(at, last - at, "\r\n", 2);
        if (!line) return 0;
        size_t size = strtoul(at, NULL, 16);
        if ((size_t)(last - line) < size + 4) return 0;
        if (pass) { memmove(to, line + 2, size); to += size; *body_size += size; }
        at = line + 4 + size;
        if (!size) { if (pass) return at - c->in; break; }
    }
    return -1;
}

static void answered(struct conn *c, char *body, size_t size, int stays) {
    struct item *it = &items[c->next];
    answers++;
    if (memcmp(c->in + 8, " 200", 4) || size != it->body_size || memcmp(body, it->body, size)) {
        wrong++;
        if (!first_error[0]) snprintf(first_error, sizeof first_error, "wrong answer: %.60s", c->in);
    }
    if (counting) {
        if (latencies_count == latencies_room)
            latencies = realloc(latencies, (latencies_room = latencies_room * 2 + 65536) * sizeof *latencies);
        latencies[latencies_count++] = now() - c->began; answer_bytes += size;
    }
    c->next = (c->next + 1) % items_count;
    if (fresh) return up(c);
    if (!stays) { reconnects++; return up(c); }
    ask(c);
}

static void pull(struct conn *c) {
    for (;;) {
        if (c->filled + 1 >= in_size) { error_of(c, "answer too large"); return up(c); }
        size_t room = in_size - c->filled - 1;
        ssize_t n = c->ssl ? SSL_read(c->ssl, c->in + c->filled, room) : recv(c->fd, c->in + c->filled, room, 0);
        if (n <= 0) {
            if (c->ssl ? SSL_get_error(c->ssl, n) == SSL_ERROR_WANT_READ : n < 0 && errno == EAGAIN) return;
            error_of(c, n ? "read failed" : "closed by the server"); return up(c);
        }
        c->filled += n;
        if (c->state == TUNNELLING) {
            if (!memmem(c->in, c->filled, "\r\n\r\n", 4)) continue;
            if (memcmp(c->in + 8, " 200", 4)) { error_of(c, "no tunnel"); return up(c); }
            c->filled = 0;
            return shake(c);
        }
        char *body; size_t size; int stays;
        ssize_t all = whole(c, &body, &size, &stays);
        if (all < 0) { error_of(c, "answer without a length"); return up(c); }
        if (all) {
            if ((size_t)all != c->filled) { error_of(c, "bytes behind the answer"); return up(c); }
            return answered(c, body, size, stays);
        }
        if (!c->ssl && (size_t)n < room) return;
    }
}

static void turn(struct conn *c, uint32_t events) {
    switch (c->state) {
    case CONNECTING: return connected(c);
    case SHAKING: return shake(c);
    case READING: case TUNNELLING:
        if (events & EPOLLOUT) { watch(c, EPOLLIN, EPOLL_CTL_MOD); push(c); return; }
        return pull(c);
    default: return;
    }
}

static int by_size(const void *a, const void *b) {
    float x = *(const float *)a, y = *(const float *)b; return x < y ? -1 : x > y;
}

static void targets_of(char *text) {
    for (char *one = strtok(text, ","); one; one = strtok(NULL, ",")) {
        char *colon = strrchr(one, ':'); if (!colon) die("--to takes HOST:PORT");
        *colon = 0;
        struct sockaddr_in *to = &targets[targets_count++];
        to->sin_family = AF_INET; to->sin_port = htons(atoi(colon + 1));
        if (!inet_pton(AF_INET, one, &to->sin_addr) || targets_count == 8) die("--to takes up to 7 IPv4 addresses");
    }
}

static void run(struct conn *conns, double seconds) {
    struct epoll_event events[64];
    for (double end = now() + seconds; now() < end;) {
        int n = epoll_wait(epfd, events, 64, 50);
        for (int i = 0; i < n; i++) turn(events[i].data.ptr, events[i].events);
        if (errors > 1000) die(first_error);
    }
    (void)conns;
}

int main(int argc, char **argv) {
    const char *list = NULL, *ca = NULL, *fields = BROWSER, *modes[] = {"direct", "proxy", "connect", "tls"};
    int connections = 8; double seconds = 2, warm = 0.5; char *to = NULL; mode = -1;
    signal(SIGPIPE, SIG_IGN);
    for (int i = 1; i < argc; i++) {
        char *name = argv[i];
        if (!strcmp(name, "--fresh")) { fresh = 1; continue; }
        if (!strcmp(name, "--resume")) { resume = 1; continue; }
        if (i + 1 == argc) die(name);
        char *value = argv[++i];
        if (!strcmp(name, "--mode")) { for (int m = 0; m < 4; m++) if (!strcmp(value, modes[m])) mode = m; }
        else if (!strcmp(name, "--to")) to = value;
        else if (!strcmp(name, "--list")) list = value;
        else if (!strcmp(name, "--ca")) ca = value;
        else if (!strcmp(name, "--connections")) connections = atoi(value);
        else if (!strcmp(name, "--seconds")) seconds = atof(value);
        else if (!strcmp(name, "--warm")) warm = atof(value);
        else if (!strcmp(name, "--fields")) fields = strcmp(value, "minimal") ? BROWSER : MINIMAL;
        else die(name);
    }
    if ((int)mode < 0 || !to || !list) die("--mode, --to and --list are needed");
    targets_of(to); read_list(list, fields);
    tls = SSL_CTX_new(TLS_client_method());
    if (ca) { if (!SSL_CTX_load_verify_locations(tls, ca, NULL)) die(ca); SSL_CTX_set_verify(tls, SSL_VERIFY_PEER, NULL); }
    SSL_CTX_set_mode(tls, SSL_MODE_AUTO_RETRY);
    /* in the order of Chromium */
    SSL_CTX_set_ciphersuites(tls, "TLS_AES_128_GCM_SHA256:TLS_AES_256_GCM_SHA384:TLS_CHACHA20_POLY1305_SHA256");
    epfd = epoll_create1(0);
    struct conn *conns = calloc(connections, sizeof *conns);
    for (int i = 0; i < connections; i++) {
        conns[i].in = malloc(in_size); conns[i].target = i % targets_count;
        conns[i].next = (size_t)i * items_count / connections; up(&conns[i]);
    }
    run(conns, warm);
    counting = 1; errors = wrong = reconnects = 0;
    double began = now(); run(conns, seconds); double took = now() - began;
    qsort(latencies, latencies_count, sizeof *latencies, by_size);
    size_t n = latencies_count;
    printf("{\"requests_per_second\": %.1f, \"requests\": %zu, \"with_warm_up\": %ld, \"p50_ms\": %.3f, \"p99_ms\": %.3f, \"max_ms\": %.3f, "
           "\"megabytes_per_second\": %.1f, \"errors\": %ld, \"wrong_bodies\": %ld, \"reconnects\": %ld, \"first_error\": \"",
        n / took, n, answers, n ? latencies[n / 2] * 1e3 : 0, n ? latencies[n - 1 - n / 100] * 1e3 : 0,
        n ? latencies[n - 1] * 1e3 : 0, answer_bytes / took / 1e6, errors, wrong, reconnects);
    for (char *p = first_error; *p; p++) if (*p >= ' ' && *p != '"' && *p != '\\') putchar(*p);
    puts("\"}");
    return 0;
}
