/* The head of the agent's answer (RFC 9112), read strictly: what is ambiguous is refused. */
#include "podwire.h"

#include <string.h>
#include <strings.h>

static int read_number(const char *text, size_t size, size_t *number)
{
    *number = 0;
    if (!size || size > 9)
        return -1;
    for (size_t n = 0; n < size; n++) {
        if (text[n] < '0' || text[n] > '9')
            return -1;
        *number = *number * 10 + (size_t)(text[n] - '0');
    }
    return 0;
}

/* Read the head of an answer, up to the empty line: 0 if it is one that we understand. */
int parse_head(const char *head, size_t size, struct answer *answer)
{
    static const char version[] = "HTTP/1.1 ";
    const char *end = head + size, *line = memmem(head, size, "\r\n", 2);
    size_t number;
    if (!line || line - head < 12 || memcmp(head, version, 9) || read_number(head + 9, 3, &number)
        || (head[12] != ' ' && head + 12 != line))
        return -1;
    answer->status = (unsigned)number;
    for (line += 2; line < end;) {
        const char *stop = memmem(line, (size_t)(end - line), "\r\n", 2);
        if (!stop)
            return -1;
        const char *colon = memchr(line, ':', (size_t)(stop - line));
        if (!colon)
            return -1;
        size_t name = (size_t)(colon - line);
        const char *value = colon + 1;
        while (value < stop && (*value == ' ' || *value == '\t'))
            value++;
        int bad = read_number(value, (size_t)(stop - value), &number);
#define IS(text) (name == sizeof text - 1 && !strncasecmp(line, text, name))
        if (IS("Content-Length")) {
            if (bad || answer->has_length++ || number > ANSWER_MAX)
                return -1;
            answer->length = number;
        } else if (IS("Podwire-Stderr")) {
            if (bad || answer->has_errors++)
                return -1;
            answer->errors = number;
        } else if (IS("Podwire-Exit")) {
            if (bad || answer->has_exit++ || number > 1)
                return -1;
            answer->exit = (unsigned)number;
        } else if (IS("Transfer-Encoding"))
            return -1;
#undef IS
        line = stop + 2;
    }
    if (answer->status == 200 && !(answer->has_length && answer->has_exit && answer->has_errors))
        return -1;
    return answer->errors <= answer->length ? 0 : -1;
}
