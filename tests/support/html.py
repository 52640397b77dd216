"""Whether HTML is well-formed and safe, for tests of what a notebook shows."""

import html
import html.parser


class Checker(html.parser.HTMLParser):
    """Reads HTML as a browser would, and refuses what an untrusted notebook loses."""

    VOID = frozenset({"br", "img", "meta", "hr"})

    def __init__(self):
        super().__init__()
        self.open = []
        self.text = []
        self.tags = set()

    def handle_starttag(self, tag, attributes):
        assert tag not in {"svg", "link", "iframe"}, tag
        # Only what adds to a page on which they may be; the page is whole without them.
        assert tag not in {"script", "style"} or not attributes
        self.tags.add(tag)
        looks = dict(attributes)
        assert not any(name.startswith("on") for name in looks), looks
        style = looks.get("style", "")
        assert "var(" not in style
        if "background" in style and tag != "img":
            assert "color:" in style.replace("background-color:", ""), style
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        if self.open[-1:] not in (["script"], ["style"]):
            self.text.append(data)
