"""Tasks with a phone, money and music, alone and across apps."""

from __future__ import annotations

from .task import TinyCheck, TinyTask

_CONTACTS = (
    "phone = sign_in('phone')\ncontacts = {c['first_name']: c for c in all_pages(apis.phone.search_contacts, "
    "access_token=phone)}\n"
)
_STRAY_ALARM = "apis.phone.create_alarm(time='05:00', access_token=sign_in('phone'))"
_STRAY_LIKE = "apis.spotify.like_song(song_id=1, access_token=sign_in('spotify'))"
_TEXTS_CHANGED = "added, updated, removed = models.changed_records('phone.GlobalTextMessage'); "
_PAID = "added, updated, removed = models.changed_records('venmo.Transaction'); "
_PAYMENT_TABLES = ("venmo.Notification", "venmo.Transaction", "venmo.User")

PHONE = [
    TinyTask(
        id="contactnumber_1",
        split="train",
        difficulty=1,
        apps=("phone",),
        instruction="What is the phone number of my sibling?",
        solution=(
            "[sibling] = apis.phone.search_contacts(relationship='sibling', access_token=sign_in('phone'))\n"
            "answer = sibling['phone_number']"
        ),
        answer="5550003333",
        wrong_answer="5550002222",
        spoil=_STRAY_ALARM,
    ),
    TinyTask(
        id="alarmoff_1",
        split="train",
        difficulty=1,
        apps=("phone",),
        instruction="Switch my tea alarm off, but keep it.",
        solution=(
            "phone = sign_in('phone')\n"
            "[alarm] = [a for a in apis.phone.show_alarms(access_token=phone) if a['label'] == 'tea']\n"
            "apis.phone.update_alarm(alarm_id=alarm['alarm_id'], enabled=False, access_token=phone)"
        ),
        wrong_code=(
            "phone = sign_in('phone')\n"
            "[alarm] = [a for a in apis.phone.show_alarms(access_token=phone) if a['label'] == 'tea']\n"
            "apis.phone.delete_alarm(alarm_id=alarm['alarm_id'], access_token=phone)"
        ),
        spoil=_STRAY_ALARM,
        changes=("phone.Alarm",),
        checks=(
            TinyCheck(
                "exactly the tea alarm changed, and it is off",
                False,
                "added, updated, removed = models.changed_records('phone.Alarm'); "
                "test.case([(a.label, a.enabled) for a in [*added, *updated]] + removed, '==', [('tea', False)])",
            ),
        ),
    ),
    TinyTask(
        id="textsend_1",
        split="dev",
        difficulty=2,
        apps=("phone",),
        instruction="Send my coworker the text message 'I am late.'",
        solution=(
            "phone = sign_in('phone')\n"
            "[coworker] = apis.phone.search_contacts(relationship='coworker', access_token=phone)\n"
            "apis.phone.send_text_message(phone_number=coworker['phone_number'], message='I am late.', "
            "access_token=phone)"
        ),
        wrong_code=_CONTACTS
        + "apis.phone.send_text_message(phone_number=contacts['Ben']['phone_number'], message='I am late.', "
        "access_token=phone)",
        spoil=_STRAY_ALARM,
        changes=("phone.GlobalTextMessage", "phone.UserTextMessage"),
        checks=(
            TinyCheck(
                "one message went to Dov, with this text",
                False,
                _TEXTS_CHANGED
                + "test.case([(m.receiver.first_name, m.message) for m in [*added, *updated, *removed]], '==', "
                "[('Dov', 'I am late.')])",
            ),
        ),
    ),
    TinyTask(
        id="textread_1",
        split="test_normal",
        difficulty=2,
        apps=("phone",),
        instruction="What is the gate code that Ben sent me?",
        solution=_CONTACTS
        + "found = apis.phone.search_text_messages(query='gate code', phone_number=contacts['Ben']['phone_number'], "
        "access_token=phone)\n"
        "answer = re.search(r'[0-9]{4}', found[0]['message'])[0]",
        answer="4711",
        wrong_answer="1147",
        spoil=_STRAY_ALARM,
    ),
]

MONEY = [
    TinyTask(
        id="balance_1",
        split="train",
        difficulty=1,
        apps=("venmo",),
        instruction="How much money is on my Venmo balance?",
        solution="answer = apis.venmo.show_venmo_balance(access_token=sign_in('venmo'))['venmo_balance']",
        answer=250,
        wrong_answer=25,
        spoil=_STRAY_LIKE,
    ),
    TinyTask(
        id="spent_1",
        split="dev",
        difficulty=2,
        apps=("venmo",),
        instruction="How much did I send to Ben on Venmo in May 2023, all payments together?",
        solution=(
            "sent = all_pages(apis.venmo.show_transactions, direction='sent', access_token=sign_in('venmo'))\n"
            "answer = sum(t['amount'] for t in sent if t['receiver']['email'] == 'ben.hale@example.com')"
        ),
        answer=20.5,
        wrong_answer=40.5,
        spoil=_STRAY_LIKE,
    ),
    TinyTask(
        id="pay_1",
        split="train",
        difficulty=2,
        apps=("venmo", "phone"),
        instruction="Send my sibling 10 dollars on Venmo with the note 'kite'.",
        solution=(
            "[sibling] = apis.phone.search_contacts(relationship='sibling', access_token=sign_in('phone'))\n"
            "apis.venmo.create_transaction(receiver_email=sibling['email'], amount=10, description='kite', "
            "access_token=sign_in('venmo'))"
        ),
        wrong_code=(
            "[sibling] = apis.phone.search_contacts(relationship='sibling', access_token=sign_in('phone'))\n"
            "apis.venmo.create_transaction(receiver_email=sibling['email'], amount=100, description='kite', "
            "access_token=sign_in('venmo'))"
        ),
        spoil=_STRAY_LIKE,
        changes=_PAYMENT_TABLES,
        checks=(
            TinyCheck(
                "one payment was made, as asked",
                False,
                _PAID + "test.case([(t.sender.first_name, t.receiver.first_name, t.amount, t.description) "
                "for t in [*added, *updated, *removed]], '==', [('Ada', 'Cleo', 10.0, 'kite')])",
            ),
        ),
    ),
    TinyTask(
        id="deny_1",
        split="train",
        difficulty=3,
        apps=("venmo",),
        instruction="Deny the Venmo payment requests of over 50 dollars that I received.",
        solution=(
            "token = sign_in('venmo')\n"
            "for request in all_pages(apis.venmo.show_received_payment_requests, status='pending', "
            "access_token=token):\n"
            "    if request['amount'] > 50:\n"
            "        apis.venmo.deny_payment_request(payment_request_id=request['payment_request_id'], "
            "access_token=token)"
        ),
        wrong_code=(
            "token = sign_in('venmo')\n"
            "for request in all_pages(apis.venmo.show_received_payment_requests, status='pending', "
            "access_token=token):\n"
            "    apis.venmo.deny_payment_request(payment_request_id=request['payment_request_id'], access_token=token)"
        ),
        spoil=_STRAY_LIKE,
        changes=("venmo.Notification", "venmo.PaymentRequest"),
        checks=(
            TinyCheck(
                "exactly the request about a favour was denied",
                False,
                "added, updated, removed = models.changed_records('venmo.PaymentRequest'); "
                "test.case([(r.description, r.denied_at is None) for r in [*added, *updated, *removed]], '==', [('a "
                "favour', False)])",
            ),
        ),
    ),
]

MUSIC = [
    TinyTask(
        id="songlength_1",
        split="train",
        difficulty=1,
        apps=("spotify",),
        instruction="How many seconds does the longest song of my song library last?",
        solution=(
            "library = all_pages(apis.spotify.show_song_library, access_token=sign_in('spotify'))\n"
            "answer = max(apis.spotify.show_song(song_id=song['song_id'])['duration'] for song in library)"
        ),
        answer=305,
        wrong_answer=260,
        spoil=_STRAY_ALARM,
    ),
    TinyTask(
        id="playlistadd_1",
        split="dev",
        difficulty=2,
        apps=("spotify",),
        instruction="Add the song Lantern Waltz to my playlist Evening.",
        solution=(
            "token = sign_in('spotify')\n"
            "[playlist] = [p for p in all_pages(apis.spotify.show_playlist_library, access_token=token) if p['title'] "
            "== 'Evening']\n"
            "[song] = [s for s in apis.spotify.search_songs(query='Lantern Waltz') if s['title'] == 'Lantern Waltz']\n"
            "apis.spotify.add_song_to_playlist(playlist_id=playlist['playlist_id'], song_id=song['song_id'], "
            "access_token=token)"
        ),
        wrong_code=(
            "token = sign_in('spotify')\n"
            "[playlist] = [p for p in all_pages(apis.spotify.show_playlist_library, access_token=token) if p['title'] "
            "== 'Morning']\n"
            "[song] = [s for s in apis.spotify.search_songs(query='Lantern Waltz') if s['title'] == 'Lantern Waltz']\n"
            "apis.spotify.add_song_to_playlist(playlist_id=playlist['playlist_id'], song_id=song['song_id'], "
            "access_token=token)"
        ),
        spoil=_STRAY_ALARM,
        changes=("spotify.PlaylistSong",),
        checks=(
            TinyCheck(
                "exactly this song is new in Evening",
                False,
                "added, updated, removed = models.changed_records('spotify.PlaylistSong'); "
                "test.case([(s.playlist.title, s.song.title) for s in [*added, *updated, *removed]], '==', "
                "[('Evening', 'Lantern Waltz')])",
            ),
        ),
    ),
    TinyTask(
        id="likeartist_1",
        split="train",
        difficulty=3,
        apps=("spotify",),
        instruction="Like all songs by Stone Ferry in my song library that I do not like yet.",
        solution=(
            "token = sign_in('spotify')\n"
            "liked = {s['song_id'] for s in all_pages(apis.spotify.show_liked_songs, access_token=token)}\n"
            "for song in all_pages(apis.spotify.show_song_library, access_token=token):\n"
            "    artists = [a['name'] for a in song['artists']]\n"
            "    if 'Stone Ferry' in artists and song['song_id'] not in liked:\n"
            "        apis.spotify.like_song(song_id=song['song_id'], access_token=token)"
        ),
        wrong_code=(
            "token = sign_in('spotify')\n"
            "liked = {s['song_id'] for s in all_pages(apis.spotify.show_liked_songs, access_token=token)}\n"
            "for song in all_pages(apis.spotify.show_song_library, access_token=token):\n"
            "    if song['song_id'] not in liked:\n"
            "        apis.spotify.like_song(song_id=song['song_id'], access_token=token)"
        ),
        spoil=_STRAY_ALARM,
        changes=("spotify.Song", "spotify.SongLike"),
        checks=(
            TinyCheck(
                "exactly Ferry Song is newly liked",
                False,
                "added, updated, removed = models.changed_records('spotify.SongLike'); "
                "test.case([like.song.title for like in [*added, *updated, *removed]], '==', ['Ferry Song'])",
            ),
        ),
    ),
]

ACROSS = [
    TinyTask(
        id="budgettext_1",
        split="test_challenge",
        difficulty=3,
        apps=("simple_note", "phone"),
        instruction="Add up the amounts of my note Budget and send the sum, just the number, to Ben as a text message.",
        solution=(
            "notes = sign_in('simple_note')\n"
            "[note] = apis.simple_note.search_notes(query='Budget', access_token=notes, page_limit=1)\n"
            "text = apis.simple_note.show_note(note_id=note['note_id'], access_token=notes)['content']\n"
            "total = sum(int(line.split()[-1]) for line in text.splitlines())\n"
        )
        + _CONTACTS
        + "apis.phone.send_text_message(phone_number=contacts['Ben']['phone_number'], message=str(total), "
        "access_token=phone)",
        wrong_code=_CONTACTS
        + "apis.phone.send_text_message(phone_number=contacts['Ben']['phone_number'], message='1200', "
        "access_token=phone)",
        spoil=_STRAY_ALARM,
        changes=("phone.GlobalTextMessage", "phone.UserTextMessage"),
        checks=(
            TinyCheck(
                "one message went to Ben, and it is the sum",
                False,
                _TEXTS_CHANGED
                + "test.case([(m.receiver.first_name, m.message) for m in [*added, *updated, *removed]], '==', "
                "[('Ben', '1260')])",
            ),
        ),
    ),
    TinyTask(
        id="playlistnote_1",
        split="test_normal",
        difficulty=3,
        apps=("spotify", "simple_note"),
        instruction="Make a note called Morning songs that holds the titles of my playlist Morning, one a line, in "
        "order.",
        solution=(
            "music = sign_in('spotify')\n"
            "[playlist] = [p for p in all_pages(apis.spotify.show_playlist_library, access_token=music) if p['title'] "
            "== 'Morning']\n"
            "songs = apis.spotify.show_playlist(playlist_id=playlist['playlist_id'], access_token=music)['songs']\n"
            "text = '\\n'.join(song['title'] for song in songs)\n"
            "apis.simple_note.create_note(title='Morning songs', content=text, access_token=sign_in('simple_note'))"
        ),
        wrong_code=(
            "apis.simple_note.create_note(title='Morning songs', content='Granite', "
            "access_token=sign_in('simple_note'))"
        ),
        spoil=_STRAY_LIKE,
        changes=("simple_note.Note",),
        checks=(
            TinyCheck(
                "one note is new, and it is as asked",
                False,
                "added, updated, removed = models.changed_records('simple_note.Note'); "
                "test.case([(n.title, n.content.strip().splitlines()) for n in [*added, *updated, *removed]], '==', "
                "[('Morning songs', ['Harbour Light', 'Paper Boats', 'Granite'])])",
            ),
        ),
    ),
]

TASKS = [*PHONE, *MONEY, *MUSIC, *ACROSS]
